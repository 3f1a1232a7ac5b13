// All threads, most recently changed first.
import { useState } from "preact/hooks";

import { at } from "../base/api";
import { exact, moneys, stamp } from "../base/format";
import { useChanges } from "../base/live";
import { usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { ThreadOverview } from "../base/shapes";
import { Head, Name, SaidLine, Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Search } from "../ui/search";
import { Answer, Empty } from "../ui/states";

const nameOf = (thread: ThreadOverview) => `${thread.namespace}\n${thread.id}`;

export function Threads() {
  const containing = route.value.query["containing"] ?? "";
  const listed = usePages<ThreadOverview>(at(["threads"], { containing, limit: 100 }), "threads", nameOf);
  const [place, setPlace] = useState(0);
  useChanges((event) => event.kind === "checkpoint" || event.kind === "rewind", listed.reload, 1000);
  const open = (thread: ThreadOverview) => go(["threads", thread.id], { namespace: thread.namespace });
  return (
    <div class="view">
      <Head
        title="Threads"
        aside={<Search label="Filter by id" value={containing} onChange={(text) => select({ containing: text })} />}
      >
        <p class="muted">Conversations and their state. Any checkpoint can be restored or forked.</p>
      </Head>
      <Answer asked={listed} what="Loading threads">
        {(threads) =>
          threads.length === 0 ? (
            containing ? (
              <Empty title={`No thread id contains “${containing}”`}>
                <a href="#/threads">Show all</a>
              </Empty>
            ) : (
              <Empty title="No threads yet">
                <pre>store.thread("support/alice").append({"{"}"role": "user", "content": "Hello"{"}"})</pre>
              </Empty>
            )
          ) : (
            <div class="table threads-table">
              <div class="table-head" aria-hidden="true">
                <span>thread</span>
                <span>last message</span>
                <span class="number">messages</span>
                <span class="number">cost</span>
                <span>changed</span>
              </div>
              <Rows
                label="Threads"
                items={threads}
                height={40}
                tall={86}
                idOf={nameOf}
                selected={place}
                onSelect={setPlace}
                onOpen={(index) => open(threads[index]!)}
                onEnd={listed.more}
                row={(thread) => (
                  <a class="line" href={href(["threads", thread.id], { namespace: thread.namespace })}>
                    <span class="two" title={thread.id}>
                      <strong>
                        <Name text={thread.id} />
                      </strong>
                      {thread.namespace && <span class="muted small">{thread.namespace}</span>}
                    </span>
                    <Newest thread={thread} />
                    <span class="number">
                      {exact(thread.message_count)}
                      <span class="unit"> {thread.message_count === 1 ? "message" : "messages"}</span>
                    </span>
                    <span class="number">{moneys(thread.cost)}</span>
                    <span class="muted since" title={stamp(thread.updated_at)}>
                      <Time at={thread.updated_at} />
                    </span>
                  </a>
                )}
              />
            </div>
          )
        }
      </Answer>
    </div>
  );
}

/** What a thread waits for, or what was said last. */
function Newest({ thread }: { thread: ThreadOverview }) {
  if (thread.is_damaged) return <span class="tag removed">damaged</span>;
  return (
    <span class="newest">
      {thread.is_pending && <span class="tag warn">pending approval</span>}
      {thread.last_message ? <SaidLine said={thread.last_message} /> : <span class="muted cut">{thread.note ?? ""}</span>}
    </span>
  );
}

// All threads, most recently changed first.
import { useState } from "preact/hooks";

import { at } from "../base/api";
import { exact, stamp } from "../base/format";
import { useChanges } from "../base/live";
import { usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { ThreadLine } from "../base/shapes";
import { Head, Id, Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Search } from "../ui/search";
import { Answer, Empty } from "../ui/states";

const nameOf = (thread: ThreadLine) => `${thread.namespace}\n${thread.id}`;

export function Threads() {
  const prefix = route.value.query["prefix"] ?? "";
  const listed = usePages<ThreadLine>(at(["threads"], { prefix, limit: 200 }), "threads", nameOf);
  const [place, setPlace] = useState(0);
  useChanges((event) => event.kind === "checkpoint" || event.kind === "rewind", listed.reload, 1000);
  const open = (thread: ThreadLine) => go(["threads", thread.id], { namespace: thread.namespace });
  return (
    <div class="view">
      <Head
        title="Threads"
        aside={<Search label="Filter by prefix" value={prefix} onChange={(text) => select({ prefix: text })} />}
      >
        <p class="muted">Conversations and their state. Any checkpoint can be restored or forked.</p>
      </Head>
      <Answer asked={listed} what="Loading threads">
        {(threads) =>
          threads.length === 0 ? (
            prefix ? (
              <Empty title={`No threads match “${prefix}”`}>
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
                <span>namespace</span>
                <span class="number">steps</span>
                <span>head</span>
                <span>changed</span>
              </div>
              <Rows
                label="Threads"
                items={threads}
                height={40}
                idOf={nameOf}
                selected={place}
                onSelect={setPlace}
                onOpen={(index) => open(threads[index]!)}
                onEnd={listed.more}
                row={(thread) => (
                  <a class="line" href={href(["threads", thread.id], { namespace: thread.namespace })}>
                    <strong>{thread.id}</strong>
                    <span class="muted">{thread.namespace || "–"}</span>
                    <span class="number">{exact(thread.step + 1)}</span>
                    <Id id={thread.head} />
                    <span class="muted" title={stamp(thread.updated_at)}>
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

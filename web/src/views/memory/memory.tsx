// Memory documents: browse, search, and see their provenance.
import { useState } from "preact/hooks";

import { at } from "../../base/api";
import { beginning } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useChanges } from "../../base/live";
import { useGet, usePages } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import type { MemoryDocument } from "../../base/shapes";
import { Head, Name, Tags, Time } from "../../ui/bits";
import { Rows } from "../../ui/rows";
import { Search } from "../../ui/search";
import { Answer, Empty } from "../../ui/states";
import { Document, NewDocument } from "./document";

interface Hit {
  document: MemoryDocument;
  namespace: string;
  score: number;
}

const idOf = (document: MemoryDocument) => document.id;

export function Memory({ id }: { id: string | undefined }) {
  const { query } = route.value;
  const { namespace = "", tag, q } = query;
  const [isNew, setNew] = useState(false);
  const listed = usePages<MemoryDocument>(
    at(["memory"], { namespace, tag, include_expired: true, limit: 200 }),
    "documents",
    idOf,
  );
  const places = useGet<{ namespaces: string[] }>(at(["memory", "namespaces"], { limit: 200 }));
  const hits = useGet<{ hits: Hit[]; note: string }>(
    q ? at(["memory", "search"], { q, namespace, tag, limit: 50 }) : null,
  );
  useChanges((event) => event.kind.startsWith("memory"), listed.reload);
  useKeys({ n: () => setNew(true), Escape: () => (id ? go(["memory"], query) : undefined) });
  const shown = q ? hits.data?.hits.map((hit) => hit.document) : listed.data;
  const asked = q ? { ...hits, data: shown } : listed;
  const open = (document: MemoryDocument) => go(["memory", document.id], { namespace, tag, q });
  return (
    <div class="view">
      <Head
        title="Memory"
        aside={
          <>
            <Search label="Search memory" value={q ?? ""} onChange={(text) => select({ q: text })} />
            <button type="button" onClick={() => setNew(true)}>
              New
            </button>
          </>
        }
      >
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Namespace
            <select value={namespace} onChange={(event) => go(["memory"], { namespace: event.currentTarget.value })}>
              <option value="">none</option>
              {[...new Set([...(places.data?.namespaces ?? []), namespace])].filter(Boolean).map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <label>
            Tag
            <input
              type="text"
              class="short"
              placeholder="any"
              value={tag ?? ""}
              onChange={(event) => select({ tag: event.currentTarget.value.trim() })}
            />
          </label>
        </form>
      </Head>
      <div class={`panes memory-panes ${id ? "chosen" : ""}`}>
        <Answer asked={asked} what={q ? "Searching" : "Loading memory"}>
          {(documents) =>
            documents.length === 0 ? (
              <Empty title={q || tag ? "No results" : "No documents yet"}>
                {q || tag ? (
                  <a href={href(["memory"], { namespace })}>Show all</a>
                ) : (
                  <pre>{'store.memory.save("style", "Short answers, please.", tags=["user"])'}</pre>
                )}
              </Empty>
            ) : (
              <Rows
                label="Documents"
                class="documents"
                items={documents}
                height={64}
                idOf={idOf}
                selected={documents.findIndex((each) => each.id === id)}
                onSelect={(index) => open(documents[index]!)}
                {...(q ? {} : { onEnd: listed.more })}
                row={(document) => (
                  <a class="document-line" href={href(["memory", document.id], { namespace, tag, q })}>
                    <span class="document-name">
                      <strong class="cut" title={document.id}>
                        <Name text={document.id} />
                      </strong>
                      {document.metadata.auto_load && <span class="tag good">auto-load</span>}
                      {isOver(document) && <span class="tag warn">expired</span>}
                      <Tags tags={document.metadata.tags} isShort />
                      <span class="muted small spacer">
                        <Time at={document.metadata.updated_at} />
                      </span>
                    </span>
                    <span class="muted cut">{beginning(document.content)}</span>
                  </a>
                )}
              />
            )
          }
        </Answer>
        {id ? (
          <Document key={`${namespace}\n${id}`} id={id} namespace={namespace} onChange={listed.reload} />
        ) : (
          <Empty title="Choose a document">Its versions and their provenance are shown here.</Empty>
        )}
      </div>
      {isNew && <NewDocument namespace={namespace} onClose={() => setNew(false)} onDone={listed.reload} />}
    </div>
  );
}

export function isOver(document: MemoryDocument): boolean {
  const { expires_at: end } = document.metadata;
  return Boolean(end) && new Date(end as string).getTime() <= Date.now();
}

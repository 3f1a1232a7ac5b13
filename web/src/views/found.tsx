// Search results of every kind: threads, runs and memory.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { at } from "../base/api";
import { beginning, plural, visible } from "../base/format";
import { useGet } from "../base/query";
import { go, href } from "../base/route";
import { Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Answer, Empty } from "../ui/states";

interface RunHit {
  run: string;
  span: string | null;
  event: string;
  ts_us: number;
  kind: string;
  part: string;
  agent: string | null;
  name: string | null;
  role: string | null;
  snippet: string;
}

interface ThreadHit {
  thread: string;
  namespace: string;
  updated_at_us: number;
  role: string | null;
  snippet: string;
}

interface MemoryHit {
  document: { id: string; content: string };
  namespace: string;
}

interface Everything {
  threads: ThreadHit[];
  runs: RunHit[];
  memory: MemoryHit[];
  words: string[];
}

/** A row of the list: the heading of a group, or one hit. */
interface Row {
  id: string;
  title?: string;
  link: string;
  open: () => void;
  body: ComponentChildren;
}

export function Found({ q }: { q: string }) {
  const asked = useGet<Everything>(at(["search", "everything"], { q, limit: 100 }));
  const [place, setPlace] = useState(-1);
  return (
    <Answer asked={asked} what="Searching">
      {(found) => {
        const rows = rowsOf(found);
        if (rows.length === 0) {
          return (
            <Empty title="No results">
              <p>No thread, run or document of the memory matches “{visible(q)}”.</p>
              <a href="#/runs">Back to the runs</a>
            </Empty>
          );
        }
        const counts = [
          found.threads.length && plural(found.threads.length, "thread"),
          found.runs.length && plural(found.runs.length, "event") + " of runs",
          found.memory.length && plural(found.memory.length, "document"),
        ].filter(Boolean);
        return (
          <>
            <p class="muted">{counts.join(", ")}; best first</p>
            <Rows
              label="Results"
              items={rows}
              height={66}
              idOf={(row) => row.id}
              selected={place}
              onSelect={setPlace}
              onOpen={(index) => rows[index]!.open()}
              row={(row) => (
                <a class="hit" href={row.link}>
                  <span class="group">{row.title}</span>
                  {row.body}
                </a>
              )}
            />
          </>
        );
      }}
    </Answer>
  );
}

function rowsOf({ threads, runs, memory, words }: Everything): Row[] {
  return [
    ...titled("Threads", threads.map((hit) => threadRow(hit, words))),
    ...titled("Memory", memory.map((hit) => memoryRow(hit, words))),
    ...titled("Runs", runs.map((hit) => runRow(hit, words))),
  ];
}

/** The first row of a group has its title. */
function titled(title: string, rows: Row[]): Row[] {
  return rows.map((row, index) => (index ? row : { ...row, title }));
}

function threadRow(hit: ThreadHit, words: readonly string[]): Row {
  const query = hit.namespace ? { namespace: hit.namespace } : {};
  return {
    id: `thread/${hit.namespace}/${hit.thread}`,
    link: href(["threads", hit.thread], query),
    open: () => go(["threads", hit.thread], query),
    body: (
      <>
        <span class="hit-title">
          <strong class="cut">
            <Marked text={hit.thread} words={words} />
          </strong>{" "}
          <span class="muted">
            {hit.namespace && `${visible(hit.namespace)} · `}
            <Time at={hit.updated_at_us} />
          </span>
        </span>
        <span class="cut">
          {hit.role && <span class="muted">{visible(hit.role)} </span>}
          <Marked text={hit.snippet} words={words} />
        </span>
      </>
    ),
  };
}

function memoryRow({ document, namespace }: MemoryHit, words: readonly string[]): Row {
  const query = namespace ? { namespace } : {};
  return {
    id: `memory/${namespace}/${document.id}`,
    link: href(["memory", document.id], query),
    open: () => go(["memory", document.id], query),
    body: (
      <>
        <span class="hit-title">
          <strong class="cut">
            <Marked text={document.id} words={words} />
          </strong>{" "}
          <span class="muted">{visible(namespace)}</span>
        </span>
        <span class="cut">
          <Marked text={beginning(document.content)} words={words} />
        </span>
      </>
    ),
  };
}

function runRow(hit: RunHit, words: readonly string[]): Row {
  const to = hit.kind === "message" ? { span: hit.event } : { span: hit.span ?? hit.event, tab: "details" };
  return {
    id: `run/${hit.event}/${hit.part}`,
    link: href(["runs", hit.run], to),
    open: () => go(["runs", hit.run], to),
    body: (
      <>
        <span class="hit-title">
          <strong class="cut">{visible(hit.agent ?? "run")}</strong>{" "}
          <span class="muted">
            {hit.kind === "message" ? hit.role : `${hit.name ?? hit.kind} ${hit.part}`} · <Time at={hit.ts_us} />
          </span>
        </span>
        <span class="cut">
          <Marked text={hit.snippet} words={words} />
        </span>
      </>
    ),
  };
}

/** Highlight the search terms; the text is never interpreted as HTML. */
function Marked({ text, words }: { text: string; words: readonly string[] }) {
  const wanted = words.map((word) => word.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)).filter(Boolean);
  if (wanted.length === 0) return <>{visible(text)}</>;
  const parts = text.split(new RegExp(`(${wanted.join("|")})`, "giu"));
  return <>{parts.map((part, index) => (index % 2 ? <mark key={index}>{visible(part)}</mark> : visible(part)))}</>;
}

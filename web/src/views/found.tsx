// Search results over messages, inputs and outputs.
import { at } from "../base/api";
import { plural } from "../base/format";
import { useGet } from "../base/query";
import { go, href } from "../base/route";
import { Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Answer, Empty } from "../ui/states";
import { useState } from "preact/hooks";

interface Hit {
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

export function Found({ q }: { q: string }) {
  const asked = useGet<{ hits: Hit[]; words: string[] }>(at(["search"], { q, limit: 100 }));
  const [place, setPlace] = useState(-1);
  const to = (hit: Hit) =>
    hit.kind === "message" ? { span: hit.event } : { span: hit.span ?? hit.event, tab: "details" };
  return (
    <Answer asked={asked} what="Searching">
      {({ hits, words }) =>
        hits.length === 0 ? (
          <Empty title="No results">
            <p>No message, input or output matches “{q}”.</p>
            <a href="#/runs">Back to the runs</a>
          </Empty>
        ) : (
          <>
            <p class="muted">{plural(hits.length, "result")}, best first</p>
            <Rows
              label="Results"
              items={hits}
              height={66}
              idOf={(hit) => `${hit.event}/${hit.part}`}
              selected={place}
              onSelect={setPlace}
              onOpen={(index) => go(["runs", hits[index]!.run], to(hits[index]!))}
              row={(hit) => (
                <a class="hit" href={href(["runs", hit.run], to(hit))}>
                  <span>
                    <strong>{hit.agent ?? "run"}</strong>{" "}
                    <span class="muted">
                      {hit.kind === "message" ? hit.role : `${hit.name ?? hit.kind} ${hit.part}`} · <Time at={hit.ts_us} />
                    </span>
                  </span>
                  <span class="cut">
                    <Marked text={hit.snippet} words={words} />
                  </span>
                </a>
              )}
            />
          </>
        )
      }
    </Answer>
  );
}

/** Highlight the search terms; the text is never interpreted as HTML. */
function Marked({ text, words }: { text: string; words: readonly string[] }) {
  const wanted = words.map((word) => word.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)).filter(Boolean);
  if (wanted.length === 0) return <>{text}</>;
  const parts = text.split(new RegExp(`(${wanted.join("|")})`, "giu"));
  return <>{parts.map((part, index) => (index % 2 ? <mark key={index}>{part}</mark> : part))}</>;
}

// Unified diffs of text and patches of values.
import { visible } from "../base/format";

/** Lines that say nothing which the names of files do not. */
const NOISE = /^(index [0-9a-f]+\.\.|similarity index |\*\*\* (Begin|End) Patch|--- |\+\+\+ |\\)/;
/** How a file begins, as git and Codex's apply_patch write it. */
const FILE = /^(?:diff --git a\/.+ b\/|\*\*\* (?:Add|Update|Delete) File: )(.+)$/;
const PLACE = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?/;
const KINDS: Record<string, string> = { "+": "added", "-": "removed", " ": "same" };

/** A diff, with whatever is written before, between and after its hunks. */
export function Unified({ text, label }: { text: string; label: string }) {
  if (!text) return <p class="muted">No text changes.</p>;
  const shown = [];
  let [before, after] = [0, 0]; // the numbers of the next lines; 0: the format has none
  let [olds, news] = [0, 0]; // how many lines the hunk still has
  for (const [index, line] of text.replace(/\n$/, "").split("\n").entries()) {
    const isInside = olds > 0 || news > 0;
    const place = PLACE.exec(line);
    const file = FILE.exec(line);
    if (place) {
      [before, olds, after, news] = [Number(place[1]), Number(place[2] ?? 1), Number(place[3]), Number(place[4] ?? 1)];
      shown.push(<Line key={index} kind="skipped" text={`from line ${after}`} />);
    } else if (file) {
      [before, after] = [0, 0];
      olds = news = line.startsWith("*") ? Infinity : 0; // Codex does not count the lines of a hunk
      shown.push(<Line key={index} kind="skipped" text={file[1]!} />);
    } else if (isInside && (line === "" || line[0]! in KINDS)) {
      const sign = line[0] ?? " ";
      shown.push(
        <Line
          key={index}
          kind={KINDS[sign]!}
          text={line.slice(1)}
          before={sign !== "+" && before ? before++ : null}
          after={sign !== "-" && after ? after++ : null}
        />,
      );
      if (sign !== "+") olds -= 1;
      if (sign !== "-") news -= 1;
    } else if (!NOISE.test(line)) {
      shown.push(<Line key={index} kind={isInside ? "skipped" : "note"} text={line === "@@" ? "…" : line.replace(/^@@ /, "")} />);
    }
  }
  return (
    <div class="diff" role="group" aria-label={label} tabIndex={0}>
      {shown}
    </div>
  );
}

/** A text and what replaces it, without the lines that both begin and end with. */
export function Replaced({ before, after }: { before: string; after: string }) {
  const [olds, news] = [lines(before), lines(after)];
  let start = 0;
  while (start < olds.length && start < news.length && olds[start] === news[start]) start += 1;
  let end = 0;
  while (end < Math.min(olds.length, news.length) - start && olds.at(-1 - end) === news.at(-1 - end)) end += 1;
  const rows = [
    ...olds.slice(0, start).map((text) => ["same", text]),
    ...olds.slice(start, olds.length - end).map((text) => ["removed", text]),
    ...news.slice(start, news.length - end).map((text) => ["added", text]),
    ...olds.slice(olds.length - end).map((text) => ["same", text]),
  ] as [string, string][];
  return (
    <div class="diff" role="group" aria-label="Change" tabIndex={0}>
      {rows.map(([kind, text], index) => (
        <Line key={index} kind={kind} text={text} />
      ))}
    </div>
  );
}

function lines(text: string): string[] {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}

const SIGNS: Record<string, string> = { added: "+", removed: "−", same: " " };

function Line({ kind, text, before, after }: { kind: string; text: string; before?: number | null; after?: number | null }) {
  const sign = SIGNS[kind];
  return (
    <div class={`diff-line ${kind}`}>
      <span class="number">{before}</span>
      <span class="number">{after}</span>
      <code>
        {sign && <span class="sign">{sign}</span>}
        {visible(text) || " "}
      </code>
    </div>
  );
}

/** RFC 6902 operations as a list of changes. */
export function Patch({ operations }: { operations: readonly Record<string, unknown>[] }) {
  return (
    <ul class="patch">
      {operations.map((operation, index) => (
        <li key={index} class={String(operation["op"])}>
          <span class="op">{String(operation["op"])}</span>
          <code>{String(operation["path"])}</code>
          {"value" in operation && <code class="patch-value">{JSON.stringify(operation["value"])}</code>}
        </li>
      ))}
    </ul>
  );
}

// Unified diffs of text and patches of values.

export function Unified({ text, label }: { text: string; label: string }) {
  if (!text) return <p class="muted">No text changes.</p>;
  const shown = [];
  let before = 0;
  let after = 0;
  for (const [index, line] of text.replace(/\n$/, "").split("\n").entries()) {
    if (line.startsWith("--- ") || line.startsWith("+++ ")) continue;
    const place = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (place) {
      before = Number(place[1]);
      after = Number(place[2]);
      shown.push(
        <div class="diff-line skipped" key={index}>
          <span class="number" />
          <span class="number" />
          <code>from line {after}</code>
        </div>,
      );
      continue;
    }
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
    if (line.startsWith("\\")) continue;
    shown.push(
      <div class={`diff-line ${kind}`} key={index}>
        <span class="number">{kind === "added" ? "" : before++}</span>
        <span class="number">{kind === "removed" ? "" : after++}</span>
        <code>
          <span class="sign">{kind === "added" ? "+" : kind === "removed" ? "−" : " "}</span>
          {line.slice(1) || " "}
        </code>
      </div>,
    );
  }
  return (
    <div class="diff" role="group" aria-label={label} tabIndex={0}>
      {shown}
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

// Changed files and their diffs.
import { useState } from "preact/hooks";

import { bytes } from "../../base/format";
import type { FileChange } from "../../base/shapes";
import { Unified } from "../../ui/diff";

const SHOWN = 200;

export function FileChanges({ changes }: { changes: readonly FileChange[] }) {
  const [most, setMost] = useState(SHOWN);
  return (
    <div class="file-changes">
      {changes.slice(0, most).map((change) => (
        <details key={change.path} open={changes.length <= 5 && change.text !== null}>
          <summary>
            <span class={`tag ${change.change}`}>{change.change}</span> <code>{change.path}</code>{" "}
            <span class="muted small">{sizes(change)}</span>
          </summary>
          {change.text ? (
            <Unified text={change.text} label={`Changes in ${change.path}`} />
          ) : (
            <p class="muted">
              {(change.after ?? change.before)?.kind === "folder" ? "A folder." : "No text to compare."}
            </p>
          )}
        </details>
      ))}
      {changes.length > most && (
        <button type="button" class="quiet" onClick={() => setMost(most + 10 * SHOWN)}>
          {changes.length - most} more
        </button>
      )}
    </div>
  );
}

function sizes(change: FileChange): string {
  const before = change.before?.kind === "file" ? bytes(change.before.size) : null;
  const after = change.after?.kind === "file" ? bytes(change.after.size) : null;
  if (before && after) return before === after ? after : `${before} → ${after}`;
  return before ?? after ?? "";
}

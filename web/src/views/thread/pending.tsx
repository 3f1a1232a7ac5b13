// Something that waits for a person: approve it, deny it, or change it first.
import { useState } from "preact/hooks";

import { at, send } from "../../base/api";
import { asProblem } from "../../base/query";
import type { CheckpointSummary } from "../../base/shapes";
import { Value } from "../../ui/json";

export function Pending({ checkpoint, onDone }: { checkpoint: CheckpointSummary; onDone: () => void }) {
  const waiting = checkpoint.pending_interrupt!;
  const [text, setText] = useState<string | null>(null);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const decide = (decision: "approve" | "deny" | "edit") => {
    let value: unknown;
    if (decision === "edit") {
      try {
        value = JSON.parse(text ?? "");
      } catch (error) {
        setTrouble(`This is not JSON: ${String(error)}`);
        return;
      }
    }
    setBusy(true);
    setTrouble("");
    send("POST", at(["threads", checkpoint.thread, "resume"], { namespace: checkpoint.namespace }), {
      decision,
      interrupt_id: waiting.id,
      ...(decision === "edit" ? { value } : {}),
    }).then(onDone, (error: unknown) => {
      setTrouble(asProblem(error).message);
      setBusy(false);
    });
  };
  return (
    <section class="pending" aria-label="Waiting for a decision">
      <h3>Waiting for a decision</h3>
      {text === null ? (
        <div class="box">
          <Value value={waiting.payload} open />
        </div>
      ) : (
        <label class="field">
          What shall be done instead, as JSON
          <textarea rows={6} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      <p class="buttons tight">
        {text === null ? (
          <>
            <button type="button" class="primary" disabled={busy} onClick={() => decide("approve")}>
              Approve
            </button>
            <button type="button" class="danger" disabled={busy} onClick={() => decide("deny")}>
              Deny
            </button>
            <button type="button" disabled={busy} onClick={() => setText(JSON.stringify(waiting.payload, null, 2))}>
              Edit
            </button>
          </>
        ) : (
          <>
            <button type="button" class="primary" disabled={busy} onClick={() => decide("edit")}>
              Approve with this
            </button>
            <button type="button" class="quiet" onClick={() => setText(null)}>
              Cancel
            </button>
          </>
        )}
      </p>
    </section>
  );
}

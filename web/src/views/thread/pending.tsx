// A pending approval: approve, deny or edit it.
import { useState } from "preact/hooks";

import { at, send } from "../../base/api";
import { asProblem } from "../../base/query";
import type { CheckpointSummary } from "../../base/shapes";
import { Value } from "../../ui/json";

export function Pending({ checkpoint, onDone }: { checkpoint: CheckpointSummary; onDone: () => void }) {
  const waiting = checkpoint.pending_interrupt!;
  // A graph is answered with a value of its own, of which its adapter says what it looks like.
  const start = waiting.answer?.values["edit"] ?? waiting.payload;
  const others = waiting.others?.length ?? 0;
  const [text, setText] = useState<string | null>(null);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const decide = (decision: "approve" | "deny" | "edit") => {
    let value: unknown;
    if (decision === "edit") {
      try {
        value = JSON.parse(text ?? "");
      } catch (error) {
        setTrouble(`Invalid JSON: ${String(error)}`);
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
    <section class="pending" aria-label="Pending approval">
      <h3>
        Pending approval {others > 0 && <small class="muted">and {others} more after it</small>}
      </h3>
      {text === null ? (
        <div class="box">
          <Value value={waiting.payload} open />
        </div>
      ) : (
        <label class="field">
          {waiting.answer ? "Answer (JSON)" : "Replacement value (JSON)"}
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
            <button type="button" disabled={busy} onClick={() => setText(JSON.stringify(start, null, 2))}>
              {waiting.answer ? "Answer …" : "Edit"}
            </button>
          </>
        ) : (
          <>
            <button type="button" class="primary" disabled={busy} onClick={() => decide("edit")}>
              {waiting.answer ? "Send answer" : "Approve edited"}
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

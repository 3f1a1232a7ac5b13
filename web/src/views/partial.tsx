// A half-streamed reply: what a model had said when its stream broke off, or has said so far.
import { useState } from "preact/hooks";

import { at, send } from "../base/api";
import { brief } from "../base/format";
import { useChanges, useEvery } from "../base/live";
import { useGet } from "../base/query";
import { href } from "../base/route";
import { Time } from "../ui/bits";
import { Confirm } from "../ui/dialog";

interface Partial {
  run: string;
  run_status: string | null;
  started_at: string;
  text: string;
}

/** Nothing, if the thread does not end with one; with `run`, only that of this run. */
export function PartialReply({ thread, namespace, run }: { thread: string; namespace: string; run?: string }) {
  const url = at(["threads", thread, "partial"], { namespace });
  const asked = useGet<{ partial: Partial | null }>(url);
  const [asking, ask] = useState(false);
  const found = asked.data?.partial ?? null;
  const isLive = found?.run_status === "running";
  useChanges((event) => event.kind === "checkpoint" || event.kind === "run", asked.reload, 500);
  useEvery(2, isLive, asked.reload);
  if (!found || (run !== undefined && found.run !== run)) return null;
  return (
    <section class="pending" aria-label="Half-streamed reply">
      <h3>{isLive ? "Reply so far" : "Half-streamed reply"}</h3>
      <div class="box said-content">{found.text}</div>
      <p class="muted">
        Begun <Time at={found.started_at} />
        {run === undefined && (
          <>
            {" "}
            by run <a href={href(["runs", found.run])}>{brief(found.run)}</a>
          </>
        )}
        .{" "}
        {!isLive && (
          <>
            The agent goes on from here with <code>partial="continue"</code>; without it, the model is asked again.
          </>
        )}
      </p>
      {!isLive && (
        <p class="buttons tight">
          <button type="button" class="danger" onClick={() => ask(true)}>
            Discard
          </button>
        </p>
      )}
      {asking && (
        <Confirm
          title="Discard this half-streamed reply"
          verb="Discard the reply"
          danger
          onClose={() => ask(false)}
          action={async () => {
            await send("DELETE", url);
            asked.reload();
          }}
        >
          <p>The model is asked again when the thread goes on.</p>
        </Confirm>
      )}
    </section>
  );
}

// The runs of a thread, and what they cost together.
import { at } from "../../base/api";
import { count, duration, moneys, plural, visible } from "../../base/format";
import { useChanges } from "../../base/live";
import { useGet, usePages } from "../../base/query";
import { href } from "../../base/route";
import type { CostTable, RunLine } from "../../base/shapes";
import { Id, Status, Time } from "../../ui/bits";
import { Answer, Empty } from "../../ui/states";

export function ThreadRuns({ thread, namespace }: { thread: string; namespace: string }) {
  const listed = usePages<RunLine>(at(["runs"], { thread, namespace, limit: 100 }), "runs", (run) => run.id);
  const total = useGet<CostTable>(at(["cost"], { thread, namespace, by: "agent" }));
  useChanges(
    (event) => event.kind === "run" || event.kind.startsWith("run."),
    () => {
      listed.reload();
      total.reload();
    },
    1000,
  );
  return (
    <Answer asked={listed} what="Loading runs">
      {(runs) =>
        runs.length === 0 && !listed.hasMore ? (
          <Empty title="No runs">
            No run names this thread. Record one with <code>store.run(thread="{thread}")</code>.
          </Empty>
        ) : (
          <div class="scroll" tabIndex={0} role="group" aria-label="Runs">
            <p class="lede">
              {moneys(total.data?.total.cost)}{" "}
              <span class="muted">
                {plural(runs.length, "run")}
                {listed.hasMore ? " and more" : ""}, {count(total.data?.total.tokens)} tokens
              </span>
            </p>
            <ul class="runs-of-thread">
              {runs.map((run) => (
                <li key={run.id}>
                  <Status status={run.status} />
                  <a href={href(["runs", run.id])}>{run.agent ?? "run"}</a> <Id id={run.id} />
                  <span class="muted facts">
                    <Time at={run.started_at_us} /> · {duration(run.duration_us)} · {count(run.tokens)} tokens · {moneys(run.cost)}
                  </span>
                  {(run.error ?? run.output) && <span class={run.error ? "bad cut" : "muted cut"}>{visible(run.error ?? run.output ?? "")}</span>}
                </li>
              ))}
            </ul>
            {listed.hasMore && (
              <button type="button" class="quiet" onClick={listed.more}>
                Show more
              </button>
            )}
          </div>
        )
      }
    </Answer>
  );
}

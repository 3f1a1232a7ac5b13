// Runs side by side: what each took, and where they went different ways.
import type { ComponentChildren } from "preact";

import { at } from "../base/api";
import { count, duration, exact, moneys, plural } from "../base/format";
import { useKeys } from "../base/keys";
import { useGet } from "../base/query";
import { go, href, route } from "../base/route";
import { tokensOf, type Usage } from "../base/shapes";
import { Crumb, Head, Id, Status, Time } from "../ui/bits";
import { Answer, Empty } from "../ui/states";

interface Figures {
  run: { id: string; agent: string | null; status: string; started_at_us: number };
  cost: { nanos: Record<string, number>; unpriced_tokens: number };
  usage: Usage;
  duration_us: number | null;
  steps: Record<string, number>;
  errors: number;
  busy_us: Record<string, number>;
}

interface Step {
  event: string;
  kind: string;
  name: string | null;
  role: string | null;
  offset_us: number;
  text: string;
}

interface Comparison {
  runs: Figures[];
  divergences: ({ index: number; what: string; one: Step | null; other: Step | null } | null)[];
}

export function Compare() {
  const wanted = (route.value.query["runs"] ?? "").split(",").filter(Boolean);
  const asked = useGet<Comparison>(wanted.length > 1 ? at(["compare"], { runs: wanted.join(",") }) : null);
  useKeys({ Escape: () => go(["runs"]) });
  return (
    <div class="view">
      <Head above={<Crumb path={["runs"]}>Runs</Crumb>} title="Side by side" />
      {wanted.length < 2 ? (
        <Empty title="Choose two runs">
          Mark runs in the <a href="#/runs">list</a> with x, then compare them with c.
        </Empty>
      ) : (
        <Answer asked={asked} what="Comparing">
          {(found) => <Shown found={found} />}
        </Answer>
      )}
    </div>
  );
}

function Shown({ found }: { found: Comparison }) {
  const { runs } = found;
  const kinds = [...new Set(runs.flatMap((each) => Object.keys(each.steps)))].sort();
  const row = (label: string, value: (each: Figures) => ComponentChildren) => (
    <tr>
      <th scope="row">{label}</th>
      {runs.map((each) => (
        <td key={each.run.id}>{value(each)}</td>
      ))}
    </tr>
  );
  return (
    <div class="scroll pad" tabIndex={0} role="group" aria-label="Comparison">
      <table class="plain wide compare">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">figure</span>
            </th>
            {runs.map((each) => (
              <th scope="col" key={each.run.id}>
                {each.run.agent ?? "run"} <Id id={each.run.id} to={href(["runs", each.run.id])} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {row("status", (each) => <Status status={each.run.status} />)}
          {row("began", (each) => <Time at={each.run.started_at_us} />)}
          {row("took", (each) => duration(each.duration_us))}
          {row("tokens", (each) => count(tokensOf(each.usage)))}
          {row("from cache", (each) => count(each.usage.cache_read ?? 0))}
          {row("cost", (each) =>
            moneys(Object.entries(each.cost.nanos).map(([currency, nanos]) => ({ currency, amount: nanos / 1e9 }))),
          )}
          {row("errors", (each) => <span class={each.errors ? "bad" : ""}>{exact(each.errors)}</span>)}
          {kinds.map((kind) => row(kind, (each) => exact(each.steps[kind] ?? 0)))}
        </tbody>
      </table>
      {found.divergences.map((divergence, index) => (
        <section key={index}>
          <h2>
            {runs[0]!.run.agent ?? "run"} and {runs[index + 1]!.run.agent ?? "run"} <Id id={runs[index + 1]!.run.id} />
          </h2>
          {divergence === null ? (
            <p>They are the same, step by step.</p>
          ) : (
            <>
              <p>
                {plural(divergence.index, "step")} in common; then another <strong>{divergence.what}</strong>.
              </p>
              <div class="side-by-side">
                <StepBox step={divergence.one} run={runs[0]!.run.id} />
                <StepBox step={divergence.other} run={runs[index + 1]!.run.id} />
              </div>
            </>
          )}
        </section>
      ))}
    </div>
  );
}

function StepBox({ step, run }: { step: Step | null; run: string }) {
  if (!step) return <div class="box muted">The run is over by then.</div>;
  return (
    <div class="box">
      <p>
        <a href={href(["runs", run], { span: step.event.replace(/:open$/, "") })}>{step.name ?? step.role ?? step.kind}</a>{" "}
        <span class="muted">after {duration(step.offset_us)}</span>
      </p>
      <p class="text">{step.text}</p>
    </div>
  );
}

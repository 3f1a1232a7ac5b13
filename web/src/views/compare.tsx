// Runs or agents side by side: cost, tokens, duration, and the first step that differs.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { at, epoch, get, type Problem } from "../base/api";
import { count, duration, exact, moneys, plural, type Amount } from "../base/format";
import { useKeys } from "../base/keys";
import { asProblem, useGet } from "../base/query";
import { go, href, route } from "../base/route";
import { tokensOf, type Usage } from "../base/shapes";
import { Crumb, Head, Id, Status, Time } from "../ui/bits";
import { Answer, Empty, Failure, Loading } from "../ui/states";

interface Spent {
  usage: Usage;
  nanos: Record<string, number>;
}

interface Figures {
  run: { id: string; agent: string | null; status: string; started_at_us: number };
  cost: Spent;
  usage: Usage;
  duration_us: number | null;
  steps: Record<string, number>;
  errors: number;
}

interface Step {
  event: string;
  kind: string;
  name: string | null;
  role: string | null;
  offset_us: number;
  text: string;
}

interface Divergence {
  index: number;
  what: string;
  one: Step | null;
  other: Step | null;
}

interface Comparison {
  runs: Figures[];
  divergences: (Divergence | null)[];
}

interface AgentFigures {
  agent: string;
  cost: Spent;
  runs: number;
  failed_runs: number;
  steps: number;
  errors: number;
  latency: { p50_us: number; p95_us: number } | null;
}

export function Compare() {
  const { query } = route.value;
  const runs = split(query["runs"]);
  const agents = split(query["agents"]);
  useKeys({ Escape: () => go([agents.length > 0 ? "cost" : "runs"]) });
  return (
    <div class="view">
      <Head
        above={agents.length > 0 ? <Crumb path={["cost"]}>Cost</Crumb> : <Crumb path={["runs"]}>Runs</Crumb>}
        title="Compare"
      />
      {runs.length > 1 ? (
        <Runs key={runs.join()} ids={runs} />
      ) : agents.length > 1 ? (
        <Agents names={agents} />
      ) : (
        <Empty title="Choose two runs">
          Select runs in the <a href="#/runs">list</a> with x, then compare them with c.
        </Empty>
      )}
    </div>
  );
}

function Runs({ ids }: { ids: readonly string[] }) {
  const [found, setFound] = useState<Comparison | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const era = epoch.value;
  useEffect(() => {
    const stop = new AbortController();
    compared(ids, stop.signal).then(
      (each) => {
        setFound(each);
        setProblem(null);
      },
      (error: unknown) => !stop.signal.aborted && setProblem(asProblem(error)),
    );
    return () => stop.abort();
  }, [era]);
  if (problem) return <Failure problem={problem} />;
  if (!found) return <Loading what="Comparing" />;
  const { runs } = found;
  const kinds = [...new Set(runs.flatMap((each) => Object.keys(each.steps)))].sort();
  return (
    <div class="scroll pad" tabIndex={0} role="group" aria-label="Comparison">
      <Table
        names={runs.map((each) => (
          <>
            {each.run.agent ?? "run"} <Id id={each.run.id} to={href(["runs", each.run.id])} />
          </>
        ))}
        rows={[
          ["status", runs.map((each) => <Status status={each.run.status} />)],
          ["started", runs.map((each) => <Time at={each.run.started_at_us} />)],
          ["duration", measured(runs, (each) => each.duration_us, duration)],
          ["tokens", measured(runs, (each) => tokensOf(each.usage), count)],
          ["from cache", measured(runs, (each) => each.usage.cache_read ?? 0, count, { isBetter: "more" })],
          ["cost", measured(runs, (each) => nanosOf(each.cost, runs[0]!.cost), (_, each) => moneys(amounts(each.cost)))],
          ["errors", measured(runs, (each) => each.errors, (_, each) => <span class={each.errors ? "bad" : ""}>{exact(each.errors)}</span>)],
          ...kinds.map((kind) => [`${kind} steps`, measured(runs, (each) => each.steps[kind] ?? 0, exact, { isBetter: null })] as const),
        ]}
      />
      {found.divergences.map((divergence, index) => (
        <section key={index}>
          <h2>
            <Id id={runs[0]!.run.id} /> and <Id id={runs[index + 1]!.run.id} />
          </h2>
          {divergence === null ? (
            <p>The runs are identical, step by step.</p>
          ) : (
            <>
              <p>
                {plural(divergence.index, "step")} in common, then they differ in <strong>{divergence.what}</strong>.
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

/** Compare the first run with each of the others. */
async function compared(ids: readonly string[], stop: AbortSignal): Promise<Comparison> {
  const [first, ...others] = ids as [string, ...string[]];
  const pairs = await Promise.all(
    others.map((other) => get<Comparison>(at(["runs", first, "compare", other]), stop)),
  );
  return {
    runs: [pairs[0]!.runs[0]!, ...pairs.map((pair) => pair.runs[1]!)],
    divergences: pairs.map((pair) => pair.divergences[0] ?? null),
  };
}

function Agents({ names }: { names: readonly string[] }) {
  const asked = useGet<{ agents: AgentFigures[]; is_partial: boolean }>(at(["compare", "agents"], { agent: names }));
  return (
    <Answer asked={asked} what="Comparing">
      {({ agents, is_partial: isPartial }) => (
        <div class="scroll pad" tabIndex={0} role="group" aria-label="Comparison">
          <Table
            names={agents.map((each) => (
              <a href={href(["runs"], { agent: each.agent })}>{each.agent}</a>
            ))}
            rows={[
              ["runs", agents.map((each) => exact(each.runs))],
              ["failed runs", agents.map((each) => <span class={each.failed_runs ? "bad" : ""}>{exact(each.failed_runs)}</span>)],
              ["tokens", agents.map((each) => count(tokensOf(each.cost.usage)))],
              ["tokens a run", measured(agents, (each) => (each.runs ? Math.round(tokensOf(each.cost.usage) / each.runs) : null), count)],
              ["cost", agents.map((each) => moneys(amounts(each.cost)))],
              [
                "cost a run",
                measured(
                  agents,
                  (each) => perRun(nanosOf(each.cost, agents[0]!.cost), each.runs),
                  (_, each) => moneys(amounts(each.cost).map(({ currency, amount }) => ({ currency, amount: Number(amount) / each.runs }))),
                ),
              ],
              ["steps", agents.map((each) => exact(each.steps))],
              ["errors", agents.map((each) => <span class={each.errors ? "bad" : ""}>{exact(each.errors)}</span>)],
              ["median duration", measured(agents, (each) => each.latency?.p50_us ?? null, duration)],
              ["95th percentile", measured(agents, (each) => each.latency?.p95_us ?? null, duration)],
            ]}
          />
          {isPartial && <p class="muted">Latencies and failures are computed from the newest events only.</p>}
        </div>
      )}
    </Answer>
  );
}

function Table({
  names,
  rows,
}: {
  names: readonly ComponentChildren[];
  rows: readonly (readonly [string, readonly ComponentChildren[]])[];
}) {
  return (
    <table class="plain wide compare">
      <thead>
        <tr>
          <th scope="col">
            <span class="hidden">figure</span>
          </th>
          {names.map((name, index) => (
            <th scope="col" key={index}>
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(([label, values]) => (
          <tr key={label}>
            <th scope="row">{label}</th>
            {values.map((value, index) => (
              <td key={index}>{value}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function StepBox({ step, run }: { step: Step | null; run: string }) {
  if (!step) return <div class="box muted">The run has ended by then.</div>;
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

/** Each value, and how much more or less it is than that of the first. */
function measured<T>(
  each: readonly T[],
  valueOf: (one: T) => number | null,
  show: (value: number | null, one: T) => ComponentChildren,
  { isBetter = "less" }: { isBetter?: "less" | "more" | null } = {},
): ComponentChildren[] {
  const base = valueOf(each[0]!);
  return each.map((one, index) => {
    const value = valueOf(one);
    const isComparable = index > 0 && value !== null && base !== null && value !== base;
    if (!isComparable) return show(value, one);
    const share = base === 0 ? null : Math.round((value / base - 1) * 100);
    const kind = isBetter === null ? "muted" : value < base === (isBetter === "less") ? "better" : "worse";
    const words = share === null ? "from nothing" : share === 0 ? "about the same" : share >= 1000 ? `× ${exact(Math.round(value / base))}` : `${share > 0 ? "+" : "−"}${exact(Math.abs(share))} %`;
    return (
      <>
        {show(value, one)} <small class={`delta ${kind}`}>{words}</small>
      </>
    );
  });
}

/** The cost in the first currency of another. */
function nanosOf(spent: Spent, other: Spent): number | null {
  const currency = Object.keys(other.nanos)[0] ?? Object.keys(spent.nanos)[0];
  return currency === undefined ? null : (spent.nanos[currency] ?? null);
}

function amounts(spent: Spent): Amount[] {
  return Object.entries(spent.nanos).map(([currency, nanos]) => ({ currency, amount: nanos / 1e9 }));
}

function perRun(nanos: number | null, runs: number): number | null {
  return nanos === null || runs === 0 ? null : nanos / runs;
}

function split(text: string | undefined): string[] {
  return (text ?? "").split(",").filter(Boolean);
}

// Costs by day, agent, model and thread; budgets and alerts; performance.
import { useMemo, useState } from "preact/hooks";

import { at } from "../base/api";
import { count, duration, exact, money, moneys } from "../base/format";
import { useGet } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { CostLine, CostTable } from "../base/shapes";
import { Figure, Head, Tabs } from "../ui/bits";
import { DayChart } from "../ui/chart";
import { Share } from "../ui/share";
import { Answer, Empty } from "../ui/states";
import { Limits } from "./limits";

type By = "agent" | "model" | "thread" | "run" | "tag" | "kind";

const PERIODS = [
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["all", "all time"],
] as const;
const GROUPS = [
  ["agent", "By agent"],
  ["model", "By model"],
  ["thread", "By thread"],
  ["run", "By run"],
  ["tag", "By tag"],
  ["kind", "By kind"],
] as const;
const SHOWN = 100;
/** Columns that a narrow screen has no room for. */
const EXTRA: ReadonlySet<string> = new Set(["events", "cached", "p50", "p99", "first token"]);

export function Cost() {
  const { query } = route.value;
  const period = query["days"] ?? "30";
  const currency = query["currency"] ?? "";
  const by = (GROUPS.find(([name]) => name === query["by"])?.[0] ?? "agent") as By;
  const since = useMemo(() => (period === "all" ? null : dayBefore(Number(period) - 1)), [period]);
  const days = useGet<CostTable>(at(["cost"], { by: "day", since, currency }));
  const groups = useGet<CostTable>(at(["cost"], { by, since, currency }));
  return (
    <div class="view cost-view">
      <Head title="Cost">
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Period
            <select value={period} onChange={(event) => select({ days: event.currentTarget.value })}>
              {PERIODS.map(([value, words]) => (
                <option key={value} value={value}>
                  {words}
                </option>
              ))}
            </select>
          </label>
          <label>
            Currency
            <select value={currency} onChange={(event) => select({ currency: event.currentTarget.value })}>
              <option value="">as charged</option>
              <option>EUR</option>
              <option>USD</option>
              <option>GBP</option>
            </select>
          </label>
        </form>
      </Head>
      <div class="scroll pad" tabIndex={0} role="group" aria-label="Cost">
        <Answer asked={days} what="Loading costs">
          {(table) =>
            table.parts.length === 0 ? (
              <Empty title="No usage">No run used tokens in this period.</Empty>
            ) : (
              <>
                <dl class="figures big">
                  <Figure label="cost" value={moneys(table.total.cost)} />
                  <Figure label="tokens" value={count(table.total.tokens)} />
                  <Figure label="events" value={count(table.total.events)} />
                  <Figure
                    label="unpriced"
                    value={count(table.total.unpriced_tokens)}
                    note={table.total.unpriced_tokens ? "tokens, not included in the cost" : "all usage is priced"}
                  />
                </dl>
                <Days parts={table.parts} />
              </>
            )
          }
        </Answer>
        <Tabs label="Groups" now={by} tabs={GROUPS} to={(name) => href(["cost"], { ...query, by: name })} />
        <Answer asked={groups} what="Loading costs">
          {(table) => <Groups key={by} table={table} by={by} />}
        </Answer>
        <Limits />
        <Performance />
      </div>
    </div>
  );
}

function Days({ parts }: { parts: CostLine[] }) {
  const days = useMemo(() => parts.map((part) => part.key ?? ""), [parts]);
  const series = useMemo(() => {
    const currencies = [...new Set(parts.flatMap((part) => part.cost.map((amount) => amount.currency)))];
    return currencies.map((currency) => ({
      label: currency,
      values: parts.map((part) => Number(part.cost.find((amount) => amount.currency === currency)?.amount ?? 0)),
    }));
  }, [parts]);
  if (series.length === 0) return null;
  const [one] = series;
  const format = (value: number) => (series.length === 1 ? money({ currency: one!.label, amount: value }) : String(value));
  return <DayChart days={days} series={series} format={format} label="Cost by day; the table below shows it by group" />;
}

function Groups({ table, by }: { table: CostTable; by: By }) {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const [most, setMost] = useState(SHOWN);
  const parts = table.parts.filter((part) => part.tokens || part.cost.length);
  const currency = table.total.cost[0]?.currency;
  const weight = (part: CostLine) =>
    currency === undefined ? part.tokens : Number(part.cost.find((each) => each.currency === currency)?.amount ?? 0);
  const largest = Math.max(...parts.map(weight));
  if (parts.length === 0) return <p class="muted">Nothing to show.</p>;
  const mark = (name: string) => {
    const next = new Set(marked);
    if (!next.delete(name)) next.add(name);
    setMarked(next);
  };
  return (
    <>
      <table class="plain wide">
        <thead>
          <tr>
            <th scope="col">{by}</th>
            {["events", "errors", "tokens", "cached", "cost"].map((each) => (
              <th scope="col" class={EXTRA.has(each) ? "number extra" : "number"} key={each}>
                {each}
              </th>
            ))}
            <th scope="col" class="extra">
              <span class="hidden">share of {currency === undefined ? "tokens" : "the cost"}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {parts.slice(0, most).map((part) => (
            <tr key={part.key ?? ""}>
              <th scope="row">
                {by === "agent" && part.key && (
                  <input
                    type="checkbox"
                    aria-label={`Select ${part.key} to compare`}
                    checked={marked.has(part.key)}
                    onChange={() => mark(part.key!)}
                  />
                )}{" "}
                <Key by={by} name={part.key} />
              </th>
              <td class="number extra">{exact(part.events)}</td>
              <td class={part.errors ? "number bad" : "number"}>{exact(part.errors)}</td>
              <td class="number" title={exact(part.tokens)}>
                {count(part.tokens)}
              </td>
              <td class="number extra">
                {part.tokens ? `${Math.round(((part.usage.cache_read ?? 0) / part.tokens) * 100)} %` : "–"}
              </td>
              <td class="number">{part.cost.length ? moneys(part.cost) : "unpriced"}</td>
              <td class="share-cell extra">
                <Share of={weight(part)} total={largest} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="buttons tight">
        {parts.length > most && (
          <button type="button" class="quiet" onClick={() => setMost(most + 10 * SHOWN)}>
            {parts.length - most} more
          </button>
        )}
        {by === "agent" && (
          <button type="button" disabled={marked.size < 2} onClick={() => go(["compare"], { agents: [...marked].join(",") })}>
            Compare agents
          </button>
        )}
      </p>
    </>
  );
}

function Key({ by, name }: { by: By; name: string | null }) {
  if (!name) return <>none</>;
  if (by === "agent") return <a href={href(["runs"], { agent: name })}>{name}</a>;
  if (by === "run") return <a href={href(["runs", name])}>{name}</a>;
  if (by === "tag") return <a href={href(["runs"], { tag: name })}>{name}</a>;
  if (by === "thread") {
    const [namespace = "", ...id] = name.split("/");
    // Its runs: a thread that runs name need not have been saved.
    return <a href={href(["runs"], { thread: id.join("/"), namespace: decodeURIComponent(namespace) })}>{id.join("/")}</a>;
  }
  return <>{name}</>;
}

interface Percentiles {
  p50_us: number;
  p95_us: number;
  p99_us: number;
}

interface Speed {
  key: string | null;
  calls: number;
  errors: number;
  latency: Percentiles | null;
  first_token: Percentiles | null;
  tokens_per_second: number | null;
}

function Performance() {
  const { query } = route.value;
  const by = query["speed"] ?? "model";
  const asked = useGet<{ rows: Speed[] }>(at(["performance"], { by }));
  return (
    <section>
      <h2>Performance</h2>
      <Tabs
        label="Performance"
        now={by}
        to={(name) => href(["cost"], { ...query, speed: name })}
        tabs={[
          ["agent", "Agents"],
          ["model", "Models"],
          ["tool", "Tools"],
        ]}
      />
      <Answer asked={asked} what="Loading performance">
        {({ rows }) =>
          rows.length === 0 ? (
            <p class="muted">No calls yet.</p>
          ) : (
            <table class="plain wide">
              <thead>
                <tr>
                  <th scope="col">{by}</th>
                  {["calls", "failed", "p50", "p95", "p99", "first token", "tokens/s"].map((each) => (
                    <th scope="col" class={EXTRA.has(each) ? "number extra" : "number"} key={each}>
                      {each}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={row.key ?? ""}>
                    <th scope="row">{row.key ?? "none"}</th>
                    <td class="number">{exact(row.calls)}</td>
                    <td class={row.errors ? "number bad" : "number"}>
                      {row.errors ? `${exact(row.errors)} (${Math.round((row.errors / row.calls) * 100)} %)` : "0"}
                    </td>
                    <td class="number extra">{duration(row.latency?.p50_us)}</td>
                    <td class="number">{duration(row.latency?.p95_us)}</td>
                    <td class="number extra">{duration(row.latency?.p99_us)}</td>
                    <td class="number extra">{duration(row.first_token?.p50_us)}</td>
                    <td class="number">{row.tokens_per_second === null ? "–" : Math.round(row.tokens_per_second)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Answer>
    </section>
  );
}

function dayBefore(days: number): string {
  return new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10);
}

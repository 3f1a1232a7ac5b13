// Where a run's tokens and money went: by agent, by model, by kind of token.
import { useMemo } from "preact/hooks";

import { count, exact, money, moneys, type Amount } from "../../base/format";
import { tokensOf, type RunLine, type RunRecord } from "../../base/shapes";
import { Share } from "../../ui/share";
import { Empty } from "../../ui/states";
import type { Trace } from "./trace";

interface Group {
  key: string;
  tokens: number;
  calls: number;
  unpriced: number;
  cost: Map<string, number>;
}

const CLASSES = [
  ["input", "input"],
  ["cache_read", "read from cache"],
  ["cache_write", "written to cache"],
  ["cache_write_1h", "written to cache for an hour"],
  ["output", "output"],
] as const;

export function Spending({ trace, run, until }: { trace: Trace; run: RunLine; until: number | null }) {
  const version = trace.version.value;
  const used = useMemo(
    () => trace.records.filter((each) => each.usage && (until === null || each.started_at_us <= until)),
    [version, until],
  );
  if (used.length === 0) {
    return <Empty title="No tokens">Nothing in this run {until === null ? "used" : "had used"} any tokens.</Empty>;
  }
  const total = grouped(used, () => "total")[0]!;
  const classes = CLASSES.map(([name, words]) => ({
    words,
    tokens: used.reduce((sum, each) => sum + (each.usage?.[name] ?? 0), 0),
  })).filter((each) => each.tokens > 0);
  const reasoning = used.reduce((sum, each) => sum + (each.usage?.reasoning ?? 0), 0);
  return (
    <div class="spending">
      <p class="lede">
        {moneys(amounts(total))} <span class="muted">for {exact(total.tokens)} tokens</span>
      </p>
      {total.unpriced > 0 && (
        <p class="muted">{exact(total.unpriced)} tokens have no price, and are not in the sum.</p>
      )}
      {until !== null && <p class="muted">Up to the moment of the slider; the whole run: {moneys(run.cost)}.</p>}
      <Breakdown title="By agent" groups={grouped(used, (each) => each.agent ?? "no agent")} />
      <Breakdown title="By model" groups={grouped(used, (each) => each.model ?? "no model")} />
      <h2 class="minor">By kind of token</h2>
      <table class="plain">
        <tbody>
          {classes.map((each) => (
            <tr key={each.words}>
              <th scope="row">{each.words}</th>
              <td class="number">{exact(each.tokens)}</td>
              <td class="share-cell">
                <Share of={each.tokens} total={total.tokens} />
              </td>
            </tr>
          ))}
          {reasoning > 0 && (
            <tr>
              <th scope="row" class="muted">
                of the output: reasoning
              </th>
              <td class="number">{exact(reasoning)}</td>
              <td />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

function Breakdown({ title, groups }: { title: string; groups: Group[] }) {
  const most = Math.max(...groups.map((each) => each.tokens));
  return (
    <>
      <h2 class="minor">{title}</h2>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">{title.slice(3)}</th>
            <th scope="col" class="number">
              calls
            </th>
            <th scope="col" class="number">
              tokens
            </th>
            <th scope="col" class="number">
              cost
            </th>
            <th scope="col">
              <span class="hidden">share</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {groups.map((each) => (
            <tr key={each.key}>
              <th scope="row">{each.key}</th>
              <td class="number">{exact(each.calls)}</td>
              <td class="number">{count(each.tokens)}</td>
              <td class="number">{amounts(each).length ? amounts(each).map(money).join(" + ") : "no price"}</td>
              <td class="share-cell">
                <Share of={each.tokens} total={most} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function grouped(records: readonly RunRecord[], keyOf: (record: RunRecord) => string): Group[] {
  const groups = new Map<string, Group>();
  for (const each of records) {
    const key = keyOf(each);
    const group = groups.get(key) ?? { key, tokens: 0, calls: 0, unpriced: 0, cost: new Map() };
    const tokens = tokensOf(each.usage);
    group.tokens += tokens;
    group.calls += 1;
    if (each.cost === null) group.unpriced += tokens;
    else if (each.currency) group.cost.set(each.currency, (group.cost.get(each.currency) ?? 0) + each.cost);
    groups.set(key, group);
  }
  return [...groups.values()].sort((one, other) => other.tokens - one.tokens);
}

function amounts(group: Group): Amount[] {
  return [...group.cost].map(([currency, amount]) => ({ currency, amount }));
}

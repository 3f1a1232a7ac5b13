// The cost of a run by agent, model and kind of token.
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
  ["other", "of no known class"],
] as const;

interface Sums {
  total: Group;
  agents: Group[];
  models: Group[];
  classes: { words: string; tokens: number }[];
  reasoning: number;
}

export function Spending({ trace, run, until }: { trace: Trace; run: RunLine; until: number | null }) {
  const version = trace.version.value;
  const used = useMemo(() => trace.records.filter((each) => each.usage), [version]);
  const sums = useMemo(() => summed(used, until ?? Infinity), [used, until]);
  if (sums.total.calls === 0) {
    return <Empty title="No tokens">This run {until === null ? "used" : "had used"} no tokens.</Empty>;
  }
  const { total, agents, models, classes, reasoning } = sums;
  return (
    <div class="spending">
      <p class="lede">
        {moneys(amounts(total))} <span class="muted">for {exact(total.tokens)} tokens</span>
      </p>
      {total.unpriced > 0 && (
        <p class="muted">{exact(total.unpriced)} tokens have no price, and are not in the sum.</p>
      )}
      {until !== null && <p class="muted">Up to the moment of the slider; the whole run: {moneys(run.cost)}.</p>}
      <Breakdown title="By agent" groups={agents} />
      <Breakdown title="By model" groups={models} />
      <h2 class="minor">By token type</h2>
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
  const most = Math.max(...groups.map(weight));
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
              <span class="hidden">share of the cost</span>
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
                <Share of={weight(each)} total={most} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** Sum the usage up to a time, in one pass. */
function summed(records: readonly RunRecord[], until: number): Sums {
  const total = group("total");
  const agents = new Map<string, Group>();
  const models = new Map<string, Group>();
  const classes = CLASSES.map(([, words]) => ({ words, tokens: 0 }));
  let reasoning = 0;
  for (const each of records) {
    if (each.started_at_us > until) break;
    const tokens = tokensOf(each.usage);
    add(total, each, tokens);
    add(of(agents, each.agent ?? "no agent"), each, tokens);
    add(of(models, each.model ?? "no model"), each, tokens);
    for (let index = 0; index < CLASSES.length; index += 1) {
      classes[index]!.tokens += each.usage?.[CLASSES[index]![0]] ?? 0;
    }
    reasoning += each.usage?.reasoning ?? 0;
  }
  return { total, agents: sorted(agents), models: sorted(models), classes: classes.filter((each) => each.tokens > 0), reasoning };
}

function add(sum: Group, record: RunRecord, tokens: number): void {
  sum.tokens += tokens;
  sum.calls += 1;
  if (record.cost === null) sum.unpriced += tokens;
  else if (record.currency) sum.cost.set(record.currency, (sum.cost.get(record.currency) ?? 0) + record.cost);
}

function group(key: string): Group {
  return { key, tokens: 0, calls: 0, unpriced: 0, cost: new Map() };
}

/** What a bar shows: the amount in the first currency. */
function weight(group: Group): number {
  return group.cost.values().next().value ?? 0;
}

function of(groups: Map<string, Group>, key: string): Group {
  let found = groups.get(key);
  if (!found) groups.set(key, (found = group(key)));
  return found;
}

function sorted(groups: Map<string, Group>): Group[] {
  return [...groups.values()].sort((one, other) => weight(other) - weight(one) || other.tokens - one.tokens);
}

function amounts(group: Group): Amount[] {
  return [...group.cost].map(([currency, amount]) => ({ currency, amount }));
}

// Budgets and alerts.
import { at } from "../base/api";
import { exact, money } from "../base/format";
import { useChanges } from "../base/live";
import { useGet } from "../base/query";
import { href } from "../base/route";
import { Time } from "../ui/bits";
import { Share } from "../ui/share";
import { Answer } from "../ui/states";

interface Budget {
  name: string;
  per: string;
  every: string | null;
  agent: string | null;
  money_nanos: number | null;
  currency: string | null;
  tokens: number | null;
  tool_calls: number | null;
  action: string;
  strict: boolean;
}

interface BudgetLine {
  budget: Budget;
  used: Record<string, number>;
  share: number | null;
  is_used_up: boolean;
}

interface Alert {
  id: string;
  ts_us: number;
  level: string;
  rule: string;
  message: string;
  run: string | null;
}

export function Limits() {
  const budgets = useGet<{ budgets: BudgetLine[] }>(at(["budgets"]));
  const alerts = useGet<{ alerts: Alert[] }>(at(["alerts"], { limit: 50 }));
  useChanges((event) => event.kind === "alert", alerts.reload);
  return (
    <>
      <section>
        <h2>Budgets</h2>
        <Answer asked={budgets} what="Loading budgets">
          {({ budgets: found }) =>
            found.length === 0 ? (
              <p class="muted">
                No budgets. Set one with <code>store.budgets.set("team", per="store", every="day", money=20)</code>.
              </p>
            ) : (
              <table class="plain wide">
                <thead>
                  <tr>
                    <th scope="col">budget</th>
                    <th scope="col">scope</th>
                    <th scope="col">limit</th>
                    <th scope="col">used</th>
                    <th scope="col">
                      <span class="hidden">share used</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {found.map((line) => (
                    <BudgetRow key={line.budget.name} line={line} />
                  ))}
                </tbody>
              </table>
            )
          }
        </Answer>
      </section>
      <section>
        <h2>Alerts</h2>
        <Answer asked={alerts} what="Loading alerts">
          {({ alerts: found }) =>
            found.length === 0 ? (
              <p class="muted">No alerts.</p>
            ) : (
              <ul class="alerts">
                {found.map((each) => (
                  <li key={each.id} class={each.level}>
                    <strong>{each.rule}</strong> {each.message}{" "}
                    {each.run && <a href={href(["runs", each.run])}>run</a>}{" "}
                    <span class="muted">
                      <Time at={each.ts_us} />
                    </span>
                  </li>
                ))}
              </ul>
            )
          }
        </Answer>
      </section>
    </>
  );
}

function BudgetRow({ line: { budget, used, share, is_used_up: isUsedUp } }: { line: BudgetLine }) {
  const limits = [
    budget.money_nanos !== null && budget.currency
      ? money({ currency: budget.currency, amount: budget.money_nanos / 1e9 })
      : null,
    budget.tokens !== null ? `${exact(budget.tokens)} tokens` : null,
    budget.tool_calls !== null ? `${exact(budget.tool_calls)} tool calls` : null,
  ].filter((each) => each !== null);
  return (
    <tr>
      <th scope="row">{budget.name}</th>
      <td>
        {budget.per === "store" ? "whole store" : `each ${budget.per}`}
        {budget.agent && ` of ${budget.agent}`}
        {budget.every && `, every ${budget.every}`}
      </td>
      <td>
        {limits.join(", ")} <span class="muted">{budget.strict ? "never exceeded" : `then ${budget.action}`}</span>
      </td>
      <td class={isUsedUp ? "bad" : ""}>
        {share === null ? <span class="muted">by {budget.per}</span> : describeUsage(used, budget)}
        {isUsedUp && ", exhausted"}
      </td>
      <td class="share-cell">{share !== null && <Share of={Math.min(1, share)} total={1} />}</td>
    </tr>
  );
}

function describeUsage(used: Record<string, number>, budget: Budget): string {
  const parts = Object.entries(used).map(([name, value]) =>
    name.startsWith("money") && budget.currency
      ? money({ currency: budget.currency, amount: value / 1e9 })
      : `${exact(value)} ${name.replaceAll("_", " ")}`,
  );
  return parts.join(", ") || "nothing";
}

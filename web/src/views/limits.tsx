// Budgets and alerts: what may be spent, how much of it is gone, and what was noticed.
import { at } from "../base/api";
import { exact, money, stamp } from "../base/format";
import { useGet } from "../base/query";
import { Share } from "../ui/share";
import { Answer } from "../ui/states";
import { Time } from "../ui/bits";

export interface BudgetLine {
  name: string;
  scope: string;
  period: string;
  limit: number;
  spent: number;
  currency: string | null;
  unit: string;
}

export interface AlertLine {
  id: string;
  ts_us: number;
  name: string;
  message: string;
}

export function Limits() {
  const budgets = useGet<{ budgets: BudgetLine[] }>(at(["budgets"]));
  const alerts = useGet<{ alerts: AlertLine[] }>(at(["alerts"], { limit: 50 }));
  return (
    <section>
      <h2>Budgets</h2>
      <Answer asked={budgets} what="Reading budgets">
        {({ budgets: found }) =>
          found.length === 0 ? (
            <p class="muted">No limits are set.</p>
          ) : (
            <table class="plain wide">
              <tbody>
                {found.map((each) => (
                  <tr key={each.name}>
                    <th scope="row">{each.name}</th>
                    <td class="muted">
                      {each.scope}, {each.period}
                    </td>
                    <td class={each.spent > each.limit ? "number bad" : "number"}>
                      {amount(each.spent, each)} of {amount(each.limit, each)}
                    </td>
                    <td class="share-cell">
                      <Share of={Math.min(each.spent, each.limit)} total={each.limit} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Answer>
      <h2>Alerts</h2>
      <Answer asked={alerts} what="Reading alerts">
        {({ alerts: found }) =>
          found.length === 0 ? (
            <p class="muted">Nothing was noticed.</p>
          ) : (
            <ul class="alerts">
              {found.map((each) => (
                <li key={each.id}>
                  <strong>{each.name}</strong> {each.message}{" "}
                  <span class="muted" title={stamp(each.ts_us)}>
                    <Time at={each.ts_us} />
                  </span>
                </li>
              ))}
            </ul>
          )
        }
      </Answer>
    </section>
  );
}

function amount(value: number, budget: BudgetLine): string {
  return budget.currency ? money({ currency: budget.currency, amount: value }) : `${exact(value)} ${budget.unit}`;
}

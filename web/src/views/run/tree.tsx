// What belongs to a run: its attempts and its sub-agents, with own and total cost, and cancelling them as one;
// and the side effects of its tool calls.
import { useState } from "preact/hooks";

import { at, send } from "../../base/api";
import { brief, count, moneys, plural, type Amount } from "../../base/format";
import { useChanges } from "../../base/live";
import { asProblem, useGet } from "../../base/query";
import { href } from "../../base/route";
import type { EffectPage, RunLine } from "../../base/shapes";
import { Status } from "../../ui/bits";
import { Confirm } from "../../ui/dialog";

interface Cost {
  tokens: number;
  cost: Amount[];
}

interface Node {
  id: string;
  agent: string | null;
  sandbox: string | null;
  status: string;
  is_over: boolean;
  attempts: { id: string; status: string }[];
  own: Cost;
  total: Cost;
  children: Node[];
}

/** Nothing, for a run without sub-agents that was never resumed and has ended. */
export function Tree({ id, onChange }: { id: string; onChange: () => void }) {
  const asked = useGet<Node>(at(["runs", id, "tree"]));
  const [asking, ask] = useState(false);
  const [trouble, setTrouble] = useState("");
  const root = asked.data;
  if (!root || (root.is_over && root.children.length === 0 && root.attempts.length === 1)) return null;
  const found = [...each(root, 0)];
  return (
    <details class="run-tree" open={found.length > 1}>
      <summary>
        {plural(found.length, "run")} in this tree, {root.total.cost.length > 0 ? moneys(root.total.cost) : `${count(root.total.tokens)} tokens`} in total
      </summary>
      <ul aria-label="Tree of runs">
        {found.map(([node, depth]) => (
          <li key={node.id} style={{ marginLeft: `${depth * 1.25}rem` }}>
            <a href={href(["runs", node.id])} aria-current={node.id === id ? "page" : undefined}>
              {node.agent ?? brief(node.id)}
            </a>{" "}
            <Status status={node.status} /> own {node.own.cost.length > 0 ? moneys(node.own.cost) : `${count(node.own.tokens)} tokens`}
            {node.children.length > 0 && `, total ${node.total.cost.length > 0 ? moneys(node.total.cost) : `${count(node.total.tokens)} tokens`}`}
            {node.sandbox && <span class="tag">sandbox {brief(node.sandbox)}</span>}
            {node.attempts.length > 1 && (
              <span class="muted">
                {" "}
                attempts:{" "}
                {node.attempts.map((attempt) => (
                  <a key={attempt.id} href={href(["runs", attempt.id])}>
                    {attempt.status}{" "}
                  </a>
                ))}
              </span>
            )}
          </li>
        ))}
      </ul>
      {!root.is_over && (
        <p class="buttons tight">
          <button type="button" class="danger" onClick={() => ask(true)}>
            Cancel all
          </button>
        </p>
      )}
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      {asking && (
        <Confirm
          title="Cancel this run and its sub-agents"
          verb="Cancel the runs"
          danger
          onClose={() => ask(false)}
          action={async () => {
            await send("POST", at(["runs", root.id, "cancel"]), {}).catch((error: unknown) =>
              setTrouble(asProblem(error).message),
            );
            asked.reload();
            onChange();
          }}
        >
          <p>Agents stop before their next step, no further side effect starts, and open questions are closed. What they have done stays.</p>
        </Confirm>
      )}
    </details>
  );
}

/** The newest effects of a run; nothing if it has none. Those of a run that was resumed are its first attempt's. */
export function RunEffects({ run }: { run: RunLine }) {
  const first = typeof run.meta["resumes"] === "string" ? run.meta["resumes"] : run.id;
  const asked = useGet<EffectPage>(at(["effects"], { run: first, limit: 100 }));
  useChanges((event) => event.kind.startsWith("effect.") && event.run === first, asked.reload);
  const effects = asked.data?.effects ?? [];
  if (effects.length === 0) return null;
  const unknown = effects.filter(({ effect }) => effect.status === "unknown").length;
  return (
    <details class="run-tree" open={unknown > 0}>
      <summary>
        {asked.data?.next_cursor ? `More than ${effects.length} effects` : plural(effects.length, "effect")}
        {unknown > 0 && `, ${unknown} unknown`}
      </summary>
      <ul aria-label="Effects of the run">
        {effects.map(({ effect, key }) => (
          <li key={effect.id}>
            <a href={href(["effects", effect.id], { run: first })}>{effect.tool}</a> <Status status={effect.status} />{" "}
            {plural(effect.attempt, "attempt")} <code class="muted">{key}</code>
          </li>
        ))}
      </ul>
      <a href={href(["effects"], { run: first })}>All effects of the run</a>
    </details>
  );
}

function* each(node: Node, depth: number): Generator<[Node, number]> {
  yield [node, depth];
  for (const child of node.children) yield* each(child, depth + 1);
}

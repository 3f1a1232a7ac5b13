// What people decide: the questions of agents (approvals), and tool calls whose outcome nobody knows (effects).
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { at, send } from "../base/api";
import { brief, count, moneys, plural, stamp, type Amount } from "../base/format";
import { useKeys } from "../base/keys";
import { useChanges } from "../base/live";
import { asProblem, useGet, usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { Effect, FileChange } from "../base/shapes";
import { Copy, Figure, Head, Status, Time } from "../ui/bits";
import { Unified } from "../ui/diff";
import { Value } from "../ui/json";
import { Rows } from "../ui/rows";
import { Answer, Empty } from "../ui/states";

interface Vote {
  by: string;
  decision: string;
  reason?: string | null;
}

interface Question {
  approval: {
    id: string;
    status: string;
    thread_id: string;
    namespace: string;
    asked_at_us: number;
    due_at_us: number | null;
    question: unknown;
    text: string | null;
    calls: { tool: string; arguments: unknown }[];
    agent: string | null;
    run_id: string | null;
    cost_nanos: Record<string, number>;
    who: string[];
    votes: Vote[];
    policy: { quorum?: number };
  };
  decided_by: string[];
  reason: string | null;
  arguments: unknown;
  revision: number;
  may_answer: boolean;
}

interface EffectInfo {
  effect: Effect & { arguments: unknown; result: unknown };
  key: string;
}

interface Since {
  events: { ts: string; label: string; agent?: string | null }[];
  files: FileChange[];
}

const STATUSES = ["", "planned", "started", "unknown", "done", "failed", "abandoned"];

/** A list beside what is chosen of it. */
function Decisions<T>({
  title,
  place,
  id,
  field,
  url,
  idOf,
  row,
  one,
  filter,
  empty,
  advice,
  changes,
}: {
  title: string;
  place: string;
  id: string | undefined;
  field: string;
  url: string;
  idOf: (item: T) => string;
  row: (item: T) => ComponentChildren;
  one: (reload: () => void) => ComponentChildren;
  filter: ComponentChildren;
  empty: string;
  advice: ComponentChildren;
  changes: string;
}) {
  const { query } = route.value;
  const asked = usePages<T>(url, field, idOf);
  useChanges((event) => event.kind.startsWith(changes) || event.kind === "checkpoint", asked.reload);
  useKeys({ Escape: () => (id ? go([place], query) : undefined) });
  return (
    <div class="view">
      <Head title={title}>
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          {filter}
        </form>
      </Head>
      <Answer asked={asked} what={`Loading ${title.toLowerCase()}`}>
        {(items) =>
          items.length === 0 && !id ? (
            <Empty title={empty}>{advice}</Empty>
          ) : (
          <div class={`panes schedule-panes ${id ? "chosen" : ""}`}>
            {items.length === 0 ? (
              <Empty title={empty} />
            ) : (
              <Rows
                label={title}
                items={items}
                height={72}
                idOf={idOf}
                selected={items.findIndex((each) => idOf(each) === id)}
                onSelect={(index) => go([place, idOf(items[index]!)], query)}
                onEnd={asked.more}
                row={row}
              />
            )}
            {id ? one(asked.reload) : <Empty title="Choose one">What is known about it is shown here.</Empty>}
          </div>
          )
        }
      </Answer>
    </div>
  );
}

function Choice({ label, name, values }: { label: string; name: string; values: readonly string[] }) {
  return (
    <label>
      {label}{" "}
      <select
        value={route.value.query[name] ?? values[0]}
        onChange={(event) => select({ [name]: event.currentTarget.value || null })}
      >
        {values.map((each) => (
          <option key={each} value={each}>
            {each || "all"}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Approvals({ id }: { id: string | undefined }) {
  const { query } = route.value;
  return (
    <Decisions<Question>
      title="Approvals"
      place="approvals"
      id={id}
      field="approvals"
      url={at(["approvals"], { status: query["status"] ?? "open", limit: 100 })}
      idOf={(each) => each.approval.id}
      changes="approval"
      empty="No questions"
      advice={<>Calls that agents may not make without a person wait here: <code>store.approvals.request("refund", …)</code></>}
      filter={<Choice label="Status" name="status" values={["open", "answered", "closed"]} />}
      row={({ approval }) => (
        <a class="document-line" href={href(["approvals", approval.id], query)}>
          <span class="document-name">
            <strong class="cut">{nameOf(approval)}</strong>
            <Status status={approval.status} />
          </span>
          <span class="muted cut">
            <Time at={approval.asked_at_us} /> · {approval.agent ?? "an agent"} · {approval.thread_id}
          </span>
        </a>
      )}
      one={(reload) => <OneQuestion key={id} id={id!} onDone={reload} />}
    />
  );
}

/** The tools that are to be called, or what is asked in other words. */
function nameOf({ calls, text, question }: Question["approval"]): string {
  const tools = calls.map((each) => each.tool).join(", ");
  if (tools || text) return tools || text!;
  if (typeof question === "string") return question;
  const { tool, action, name } = (question ?? {}) as Record<string, unknown>;
  const named = [tool, action, name].find((each) => typeof each === "string");
  return (named as string | undefined) ?? "Question";
}

function OneQuestion({ id, onDone }: { id: string; onDone: () => void }) {
  const asked = useGet<Question>(at(["approvals", id]));
  const changes = useGet<{ files: FileChange[] }>(at(["approvals", id, "changes"]));
  const [edited, edit] = useState<string | null>(null);
  const [reason, setReason] = useState("");
  useChanges((event) => event.kind.startsWith("approval"), asked.reload);
  const acting = useAction(() => {
    edit(null);
    asked.reload();
    onDone();
  });
  return (
    <Answer asked={asked} what="Loading question">
      {({ approval, decided_by, reason: why, arguments: given, revision, may_answer }) => {
        const answer = (decision: string) =>
          acting.run(at(["approvals", id, "answer"]), () => ({
            decision,
            revision,
            ...(reason ? { reason } : {}),
            ...(decision === "edit" ? { value: JSON.parse(edited ?? "") as unknown } : {}),
          }));
        return (
          <section class="document" aria-label="Question">
            <a class="back" href={href(["approvals"], route.value.query)}>
              All questions
            </a>
            <h2>{nameOf(approval)}</h2>
            {approval.text && approval.text !== nameOf(approval) && <p>{approval.text}</p>}
            <dl class="figures small">
              <Figure label="status" value={<Status status={approval.status} />} note={decided_by.join(", ")} />
              <Figure label="asked" value={<Time at={approval.asked_at_us} />} note={approval.agent ?? undefined} />
              <Figure label="until" value={approval.due_at_us ? stamp(approval.due_at_us) : "no deadline"} />
              <Figure label="cost so far" value={moneys(amounts(approval.cost_nanos))} />
              <Figure label="who" value={approval.who.join(", ") || "anybody"} note={quorum(approval.policy.quorum)} />
              <Figure
                label="thread"
                value={<a href={href(["threads", approval.thread_id], { namespace: approval.namespace })}>{approval.thread_id}</a>}
                note={approval.run_id ? <a href={href(["runs", approval.run_id])}>its run</a> : undefined}
              />
            </dl>
            <div class="box">
              {edited === null ? (
                <Value value={given ?? approval.question} open />
              ) : (
                <label class="field">
                  Arguments (JSON)
                  <textarea rows={6} spellcheck={false} value={edited} onInput={(event) => edit(event.currentTarget.value)} />
                </label>
              )}
            </div>
            {acting.trouble}
            {may_answer ? (
              <>
                <label class="field">
                  Reason
                  <input value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
                </label>
                <p class="buttons tight">
                  <button type="button" class="primary" disabled={acting.busy} onClick={() => answer(edited === null ? "approve" : "edit")}>
                    {edited === null ? "Approve" : "Approve edited"}
                  </button>
                  <button type="button" class="danger" disabled={acting.busy} onClick={() => answer("deny")}>
                    Deny
                  </button>
                  <button type="button" class="quiet" onClick={() => edit(edited === null ? JSON.stringify(given, null, 2) : null)}>
                    {edited === null ? "Edit" : "Cancel"}
                  </button>
                </p>
              </>
            ) : (
              approval.status === "open" && <p class="muted">Others have to answer this.</p>
            )}
            {why && <p>{why}</p>}
            {approval.votes.length > 0 && (
              <ul>
                {approval.votes.map((vote, index) => (
                  <li key={index}>
                    {vote.by}: {vote.decision} {vote.reason && <span class="muted">({vote.reason})</span>}
                  </li>
                ))}
              </ul>
            )}
            <Files files={changes.data?.files ?? []} />
          </section>
        );
      }}
    </Answer>
  );
}

export function Effects({ id }: { id: string | undefined }) {
  const { query } = route.value;
  return (
    <Decisions<EffectInfo>
      title="Effects"
      place="effects"
      id={id}
      field="effects"
      url={at(["effects"], { status: query["status"] || null, run: query["run"] ?? null, limit: 100 })}
      idOf={(each) => each.effect.id}
      changes="effect"
      empty="No effects"
      advice={<>Tool calls that are made once, whatever crashes, are listed here: <code>store.effects.plan(…)</code></>}
      filter={
        <>
          <Choice label="State" name="status" values={STATUSES} />
          {query["run"] && (
            <span class="tag">
              run <a href={href(["runs", query["run"]])}>{brief(query["run"])}</a>{" "}
              <button type="button" class="quiet" aria-label="Show the effects of all runs" onClick={() => select({ run: null })}>
                ×
              </button>
            </span>
          )}
        </>
      }
      row={({ effect }) => (
        <a class="document-line" href={href(["effects", effect.id], query)}>
          <span class="document-name">
            <strong class="cut">{effect.tool}</strong>
            <Status status={effect.status} />
          </span>
          <span class="muted cut">
            <Time at={effect.planned_at_us} /> · {effect.attempt} {effect.attempt === 1 ? "attempt" : "attempts"} ·{" "}
            {effect.thread_id ?? brief(effect.id)}
          </span>
        </a>
      )}
      one={(reload) => <OneEffect key={id} id={id!} onDone={reload} />}
    />
  );
}

function OneEffect({ id, onDone }: { id: string; onDone: () => void }) {
  const asked = useGet<EffectInfo>(at(["effects", id]));
  const since = useGet<Since>(at(["effects", id, "changes"]));
  const [result, setResult] = useState("");
  useChanges((event) => event.kind.startsWith("effect"), asked.reload);
  const acting = useAction(() => {
    asked.reload();
    onDone();
  });
  const decide = (decision: string, more: () => object = () => ({})) =>
    acting.run(at(["effects", id, "decision"]), () => ({ decision, ...more() }));
  return (
    <Answer asked={asked} what="Loading effect">
      {({ effect, key }) => (
        <section class="document" aria-label="Effect">
          <a class="back" href={href(["effects"], route.value.query)}>
            All effects
          </a>
          <h2>{effect.tool}</h2>
          <dl class="figures small">
            <Figure label="state" value={<Status status={effect.status} />} note={effect.replay} />
            <Figure label="attempts" value={effect.attempt} note={effect.owner ?? undefined} />
            <Figure label="planned" value={<Time at={effect.planned_at_us} />} />
            <Figure label="key" value={<code>{key}</code>} note={<Copy text={key} />} />
            {Object.keys(effect.cost_nanos).length > 0 && <Figure label="cost" value={moneys(amounts(effect.cost_nanos))} />}
            {effect.thread_id && (
              <Figure
                label="thread"
                value={<a href={href(["threads", effect.thread_id], { namespace: effect.namespace })}>{effect.thread_id}</a>}
                note={effect.run_id ? <a href={href(["runs", effect.run_id])}>its run</a> : undefined}
              />
            )}
          </dl>
          {effect.note && <p>{effect.note}</p>}
          <div class="box">
            <Value value={effect.arguments} name="arguments" open />
            {effect.result !== null && <Value value={effect.result} name="result" open />}
          </div>
          {effect.file_count > 0 && (
            <details>
              <summary>{plural(effect.file_count, "file")} changed by the call</summary>
              <ul>
                {effect.files.map((path) => (
                  <li key={path}>
                    <code>{path}</code>
                  </li>
                ))}
                {effect.file_count > effect.files.length && <li>and {count(effect.file_count - effect.files.length)} more</li>}
              </ul>
            </details>
          )}
          {acting.trouble}
          {effect.status === "unknown" && (
            <>
              <p>Nobody knows whether this call happened: its process ended while it was being made.</p>
              <label class="field">
                Its result, if it happened
                <input value={result} onInput={(event) => setResult(event.currentTarget.value)} />
              </label>
              <p class="buttons tight">
                <button type="button" class="primary" disabled={acting.busy} onClick={() => decide("happened", () => ({ result: result || null }))}>
                  It happened
                </button>
                <button type="button" disabled={acting.busy} onClick={() => decide("retry")}>
                  It did not, call it
                </button>
                <button type="button" class="danger" disabled={acting.busy} onClick={() => decide("abandon")}>
                  Give up
                </button>
              </p>
            </>
          )}
          <h3>Changed since it was asked for</h3>
          <Answer asked={since} what="Loading changes">
            {(found) =>
              found.events.length + found.files.length === 0 ? (
                <p class="muted">Nothing was recorded, and no file is known to have changed.</p>
              ) : (
                <>
                  <ul>
                    {found.events.map((event, index) => (
                      <li key={index}>
                        <Time at={event.ts} /> {event.label} <span class="muted">{event.agent}</span>
                      </li>
                    ))}
                  </ul>
                  <Files files={found.files} />
                </>
              )
            }
          </Answer>
        </section>
      )}
    </Answer>
  );
}

function Files({ files }: { files: FileChange[] }) {
  return (
    <>
      {files.map((file) => (
        <details key={file.path}>
          <summary>
            {file.change} {file.path}
          </summary>
          {file.text && <Unified text={file.text} label={file.path} />}
        </details>
      ))}
    </>
  );
}

function amounts(nanos: Record<string, number>): Amount[] {
  return Object.entries(nanos).map(([currency, value]) => ({ currency, amount: value / 1e9 }));
}

function quorum(count: number | undefined): string | undefined {
  return count && count > 1 ? `${count} must agree` : undefined;
}

/** Send a decision once at a time, and show what went wrong. */
function useAction(onDone: () => void) {
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const run = (url: string, body: () => object) => {
    let content: object;
    try {
      content = body();
    } catch (error) {
      setTrouble(`Invalid JSON: ${String(error)}`);
      return;
    }
    setBusy(true);
    setTrouble("");
    send("POST", url, content)
      .then(onDone, (error: unknown) => setTrouble(asProblem(error).message))
      .finally(() => setBusy(false));
  };
  return {
    run,
    busy,
    trouble: trouble && (
      <p class="trouble" role="alert">
        {trouble}
      </p>
    ),
  };
}

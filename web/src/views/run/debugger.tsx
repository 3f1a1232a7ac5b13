// Stepping through a run, forward and back: the conversation, state, files and memory at each step, with breakpoints.
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { at, epoch, get, type Problem } from "../../base/api";
import { count, duration, exact, money, moneys, plural } from "../../base/format";
import { useKeys } from "../../base/keys";
import { asProblem, useGet } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import { narrow } from "../../base/screen";
import type { CheckpointContent, FileChange, ReadMessage, RunLine } from "../../base/shapes";
import { Crumb, Figure, Head, Id, Status, Tabs } from "../../ui/bits";
import { Patch, Unified } from "../../ui/diff";
import { Value } from "../../ui/json";
import { Message, Output } from "../../ui/message";
import { Rows } from "../../ui/rows";
import { Alone, Answer, Empty } from "../../ui/states";
import { EditMessage, EditState } from "../thread/edit";
import { FileChanges } from "../workspace/changes";
import { RerunDialog } from "./reruns";

interface Step {
  number: number;
  id: string;
  kind: "message" | "span" | "call";
  type: string;
  name: string | null;
  agent: string | null;
  role: string | null;
  model: string | null;
  status: string | null;
  started_at_us: number;
  duration_us: number | null;
  tokens: number;
  cost: number | null;
  currency: string | null;
  tokens_so_far: number;
  cost_so_far: Record<string, number>;
  call: number;
}

interface StateAt {
  thread: string;
  namespace: string;
  checkpoint: string;
  number: number;
  value: Record<string, unknown>;
  changes: Record<string, unknown>[];
}

interface Access {
  what: "read" | "search" | "context" | "write" | "delete";
  id: string | null;
  namespace: string;
  at_us: number;
  query: string | null;
  found: string[];
  version: number | null;
  text: string | null;
}

interface View {
  step: Step;
  is_last: boolean;
  input: ReadMessage[] | null;
  input_value: unknown;
  output: ReadMessage[] | null;
  output_value: unknown;
  error: string | null;
  messages: { total: number; first: number; new: number; messages: ReadMessage[] } | null;
  state: StateAt | null;
  files: { snapshot: string; changes: FileChange[]; more: number } | null;
  memory: Access[];
}

const PAGE = 200;
const SHOWN_MESSAGES = 30;
const TABS = [
  ["step", "Step"],
  ["steps", "All steps"],
] as const;

export function Debugger({ id }: { id: string }) {
  const run = useGet<RunLine>(at(["runs", id]));
  const counted = useGet<{ steps: number }>(at(["runs", id, "steps", "count"]));
  if (!run.data || !counted.data) {
    const asked = run.data ? counted : run;
    return (
      <Alone title={`Steps of ${id}`}>
        <Answer asked={asked as typeof run} what="Loading steps">
          {() => null}
        </Answer>
      </Alone>
    );
  }
  return <Stepper key={id} run={run.data} total={counted.data.steps} />;
}

function Stepper({ run, total }: { run: RunLine; total: number }) {
  const { query } = route.value;
  const isNarrow = narrow.value;
  const number = Math.min(Math.max(Math.trunc(Number(query["step"] ?? 1)) || 1, 1), Math.max(total, 1));
  const [most, setMost] = useState(SHOWN_MESSAGES);
  const asked = useGet<View>(total > 0 ? at(["runs", run.id, "steps", String(number)], { messages: most }) : null);
  const last = useRef<View | undefined>(undefined);
  if (asked.data) last.current = asked.data;
  const shown = asked.data ?? last.current; // while the next step loads, the one before stays
  const move = (to: number) => {
    setMost(SHOWN_MESSAGES);
    select({ step: Math.min(Math.max(to, 1), total) });
  };
  const stops = Stops.of(query);
  const [note, setNote] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const search = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => () => search.current?.abort(), []);
  const proceed = (back: boolean) => {
    setProblem(null);
    if (stops.isEmpty) {
      setNote(null);
      move(back ? 1 : total);
      return;
    }
    search.current?.abort();
    const stop = (search.current = new AbortController());
    setBusy(true);
    setNote("Looking for the next stop …");
    get<{ step: Step | null }>(at(["runs", run.id, "steps", "find"], { ...stops.asked(), after: number, ...(back ? { back: true } : {}) }), stop.signal).then(
      ({ step }) => {
        setBusy(false);
        setNote(step ? `Stopped at step ${exact(step.number)}.` : `No ${back ? "earlier" : "later"} step meets a condition.`);
        if (step) move(step.number);
      },
      (error: unknown) => {
        if (stop.signal.aborted) return;
        setBusy(false);
        setNote(null);
        setProblem(asProblem(error));
      },
    );
  };
  useKeys({
    "]": () => move(number + 1),
    "[": () => move(number - 1),
    ArrowRight: () => move(number + 1),
    ArrowLeft: () => move(number - 1),
    j: () => move(number + 1),
    k: () => move(number - 1),
    ArrowDown: () => move(number + 1),
    ArrowUp: () => move(number - 1),
    Home: () => move(1),
    End: () => move(total),
    n: () => proceed(false),
    p: () => proceed(true),
    Escape: () => go(["runs", run.id]),
  });
  const tab = isNarrow && query["tab"] === "steps" ? "steps" : "step";
  const list = <StepList run={run.id} total={total} selected={number} onMove={move} />;
  return (
    <div class="view debugger">
      <Head
        above={
          <>
            <Crumb path={["runs"]}>Runs</Crumb> / <Id id={run.id} to={href(["runs", run.id])} />
          </>
        }
        title={total > 0 ? `Step ${exact(number)} of ${exact(total)}` : "Steps"}
      >
        {shown && (
          <dl class="figures">
            <Figure label="agent" value={shown.step.agent ?? run.agent ?? "run"} />
            <Figure label="cost so far" value={moneys(Object.entries(shown.step.cost_so_far).map(([currency, amount]) => ({ currency, amount })))} />
            <Figure label="tokens so far" value={count(shown.step.tokens_so_far)} />
            <Figure label="after" value={duration(shown.step.started_at_us - run.started_at_us)} />
          </dl>
        )}
      </Head>
      {total === 0 ? (
        <Empty title="No steps">This run has no messages, spans or recorded calls.</Empty>
      ) : (
        <>
          <div class="stepping" role="group" aria-label="Stepping">
            <button type="button" disabled={number === 1} onClick={() => move(1)} aria-label="First step" title="First step (Home)">
              ⇤
            </button>
            <button type="button" disabled={busy} onClick={() => proceed(true)} title="Back to the stop before (p)">
              Rewind
            </button>
            <button type="button" disabled={number === 1} onClick={() => move(number - 1)} title="Step back ([ or ←)">
              ‹ Back
            </button>
            <button type="button" class="primary" disabled={number === total} onClick={() => move(number + 1)} title="Step forward (] or →)">
              Step ›
            </button>
            <button type="button" disabled={busy} onClick={() => proceed(false)} title="Go on to the next stop (n)">
              Continue
            </button>
            <button type="button" disabled={number === total} onClick={() => move(total)} aria-label="Last step" title="Last step (End)">
              ⇥
            </button>
            <label class="goto">
              <span class="hidden">Go to step</span>
              <input
                key={number} // uncontrolled: what is typed while a step loads must not be lost
                type="number"
                min={1}
                max={total}
                defaultValue={`${number}`}
                onChange={(event) => move(Number(event.currentTarget.value) || 1)}
              />
            </label>
            <span class="muted small" role="status">
              {note}
            </span>
            {problem && (
              <span class="trouble" role="alert">
                {problem.message}
              </span>
            )}
          </div>
          <StopsForm stops={stops} />
          <div class="panes">
            {!isNarrow && list}
            <section class="side" aria-label="Step">
              {isNarrow && <Tabs tabs={TABS} now={tab} label="Step" to={(name) => href(["runs", run.id, "steps"], { ...query, tab: name === "step" ? null : name })} />}
              {tab === "steps" ? (
                list
              ) : (
                <div class="side-body step-body" tabIndex={0} role="group" aria-label="Content of the step" aria-busy={asked.loading}>
                  {shown ? (
                    <StepContent key={shown.step.number} run={run} view={shown} onMore={() => setMost(most + 300)} />
                  ) : (
                    <Answer asked={asked} what="Loading step">
                      {() => null}
                    </Answer>
                  )}
                </div>
              )}
            </section>
          </div>
        </>
      )}
    </div>
  );
}

/** All steps; only the pages that are looked at are fetched. */
function StepList({ run, total, selected, onMove }: { run: string; total: number; selected: number; onMove: (to: number) => void }) {
  const era = epoch.value;
  const [pages, hold] = useState<ReadonlyMap<number, readonly Step[]>>(new Map());
  const asked = useRef(new Set<number>());
  useEffect(() => {
    asked.current.clear();
    hold(new Map());
  }, [era, run]);
  const fetchPage = useCallback(
    (page: number) => {
      if (asked.current.has(page)) return;
      asked.current.add(page);
      get<{ steps: Step[] }>(at(["runs", run, "steps"], { after: page * PAGE, limit: PAGE })).then(
        ({ steps }) => hold((was) => new Map(was).set(page, steps)),
        () => asked.current.delete(page),
      );
    },
    [run],
  );
  const numbers = useMemo(() => Array.from({ length: total }, (_, index) => index), [total]);
  return (
    <Rows
      class="step-list"
      label="Steps"
      items={numbers}
      height={34}
      keys={false}
      idOf={(index) => String(index)}
      selected={selected - 1}
      row={(index, _, isSelected) => (
        <StepLine
          step={pages.get(Math.floor(index / PAGE))?.[index % PAGE]}
          number={index + 1}
          isSelected={isSelected}
          onMissing={() => fetchPage(Math.floor(index / PAGE))}
          onMove={onMove}
        />
      )}
    />
  );
}

function StepLine({
  step,
  number,
  isSelected,
  onMissing,
  onMove,
}: {
  step: Step | undefined;
  number: number;
  isSelected: boolean;
  onMissing: () => void;
  onMove: (to: number) => void;
}) {
  useEffect(() => {
    if (!step) onMissing();
  }, [step]);
  return (
    <button type="button" class="step-line" aria-current={isSelected ? "step" : undefined} onClick={() => onMove(number)}>
      <span class="number muted">{exact(number)}</span>
      {step ? (
        <>
          <i class={`dot ${isFailed(step) ? "error" : step.kind === "message" ? "mark" : step.type}`} aria-hidden="true" />
          <span class="step-name">{titleOf(step)}</span>
          {isFailed(step) && <span class="bad small">{step.status}</span>}
          {step.cost !== null && step.currency && <span class="muted small">{money({ amount: step.cost, currency: step.currency })}</span>}
        </>
      ) : (
        <span class="muted">…</span>
      )}
    </button>
  );
}

function StepContent({ run, view, onMore }: { run: RunLine; view: View; onMore: () => void }) {
  const { step, messages, state, files, memory } = view;
  const [isRerunning, rerun] = useState(false);
  const [edited, edit] = useState<"message" | "state" | null>(null);
  return (
    <>
      <header class="step-head">
        <h2>{titleOf(step)}</h2>
        <span class="muted">
          {[step.type === "message" ? null : step.type, step.model, step.tokens ? `${count(step.tokens)} tokens` : null, duration(step.duration_us)]
            .filter((each) => each && each !== titleOf(step) && each !== "–")
            .join(" · ")}
        </span>
        {step.status && <Status status={step.status} />}
      </header>
      <p class="buttons tight">
        <button type="button" onClick={() => rerun(true)}>
          Rerun from here …
        </button>
        {state && (
          <>
            <button type="button" onClick={() => edit("message")}>
              Edit and fork …
            </button>
            <button type="button" onClick={() => edit("state")}>
              Edit state and fork …
            </button>
          </>
        )}
      </p>
      {view.error && <p class="trouble">{view.error}</p>}
      {(view.input_value ?? null) !== null && (
        <Part title="Input">
          <Given value={view.input_value} />
        </Part>
      )}
      {(view.output_value ?? null) !== null && (
        <Part title="Output">
          <Given value={view.output_value} />
        </Part>
      )}
      <Part title="State" note={state ? (state.changes.length > 0 ? plural(state.changes.length, "change") : "unchanged") : "no checkpoint yet"}>
        {state && (
          <>
            {state.changes.length > 0 && <Patch operations={state.changes} />}
            <details>
              <summary>The whole state</summary>
              <Value value={state.value} search />
            </details>
            <p>
              <a href={href(["threads", state.thread], { namespace: state.namespace, checkpoint: state.checkpoint })}>
                Checkpoint {state.number} of {state.thread}
              </a>
            </p>
          </>
        )}
      </Part>
      <Part title="Files" note={files ? (files.changes.length > 0 ? plural(files.changes.length + files.more, "change") : "unchanged") : "none saved"}>
        {files && (
          <>
            <FileChanges changes={files.changes} />
            {files.more > 0 && <p class="muted">{exact(files.more)} more</p>}
            <p>
              <a href={href(["workspace", files.snapshot])}>All files of this moment</a>
            </p>
          </>
        )}
      </Part>
      <Part title="Memory" note={memory.length > 0 ? plural(memory.length, "access", "accesses") : "not used"}>
        {memory.length > 0 && (
          <ul class="accesses">
            {memory.map((each, index) => (
              <li key={index}>
                <span class={`tag ${each.what}`}>{each.what}</span>{" "}
                {each.query !== null && <q>{each.query}</q>} {each.id && <Document access={each} />}
                {each.found.length > 0 && <span class="muted"> found {each.found.join(", ")}</span>}
                {each.text !== null && (/^(---|@@)/.test(each.text) ? <Unified text={each.text} label={`Change of ${each.id ?? "memory"}`} /> : <Output text={each.text} />)}
              </li>
            ))}
          </ul>
        )}
      </Part>
      <Part title="Conversation" note={messages ? `${plural(messages.total, "message")}, ${exact(messages.total - messages.new)} new` : "no messages yet"}>
        {messages && messages.first > 0 && (
          <button type="button" class="quiet" onClick={onMore}>
            {exact(messages.first)} earlier
          </button>
        )}
        {messages?.messages.map((each, index) => (
          <div key={messages.first + index} class={messages.first + index >= messages.new ? "is-new" : undefined}>
            <Message message={each} />
          </div>
        ))}
      </Part>
      {isRerunning && <RerunDialog run={run.id} from={step.call} onClose={() => rerun(false)} />}
      {edited && state && <EditAt state={state} what={edited} onClose={() => edit(null)} />}
    </>
  );
}

function Document({ access }: { access: Access }) {
  return (
    <a href={href(["memory", access.id ?? ""], { namespace: access.namespace })}>
      {access.id}
      {access.version !== null && ` (version ${access.version})`}
    </a>
  );
}

/** Change the last message, or the state, of the checkpoint of a step. */
function EditAt({ state, what, onClose }: { state: StateAt; what: "message" | "state"; onClose: () => void }) {
  const asked = useGet<CheckpointContent>(
    at(["threads", state.thread, "checkpoints", state.checkpoint], { namespace: state.namespace, readable: true }),
  );
  if (asked.problem)
    return (
      <p class="trouble" role="alert">
        {asked.problem.message}
      </p>
    );
  if (!asked.data) return null;
  if (what === "state" || asked.data.messages.length === 0) return <EditState content={asked.data} onClose={onClose} />;
  return <EditMessage content={asked.data} index={asked.data.messages.length - 1} onClose={onClose} />;
}

function Part({ title, note, children }: { title: string; note?: string; children?: ComponentChildren }) {
  return (
    <section class="step-part" aria-label={title}>
      <h3>
        {title} {note && <small class="muted">{note}</small>}
      </h3>
      {children}
    </section>
  );
}

function Given({ value }: { value: unknown }) {
  return typeof value === "string" ? <Output text={value} /> : <Value value={value} search />;
}

/** Where to stop: kept in the address. */
class Stops {
  constructor(
    readonly tools: readonly string[],
    readonly error: boolean,
    readonly cost: string,
    readonly text: string,
  ) {}

  static of(query: Record<string, string>): Stops {
    const tools = (query["tool"] ?? "").split(",").map((each) => each.trim());
    return new Stops(tools.filter(Boolean), query["error"] === "true", query["cost"] ?? "", query["text"] ?? "");
  }

  get isEmpty(): boolean {
    return this.tools.length === 0 && !this.error && this.cost === "" && this.text === "";
  }

  asked(): Record<string, string | boolean | readonly string[]> {
    return {
      ...(this.tools.length > 0 ? { tool: this.tools } : {}),
      ...(this.error ? { error: true } : {}),
      ...(this.cost ? { cost_above: this.cost } : {}),
      ...(this.text ? { text: this.text } : {}),
    };
  }
}

function StopsForm({ stops }: { stops: Stops }) {
  const form = (
    <form class="stops" aria-label="Breakpoints" onSubmit={(event) => event.preventDefault()}>
      {!narrow.value && <span class="muted">Stop at</span>}
      <label>
        tool{" "}
        <input type="text" placeholder="any" value={stops.tools.join(", ")} onChange={(event) => select({ tool: event.currentTarget.value })} />
      </label>
      <label>
        text{" "}
        <input type="search" placeholder="any" value={stops.text} onChange={(event) => select({ text: event.currentTarget.value })} />
      </label>
      <label>
        cost above{" "}
        <input
          type="number"
          min={0}
          step="any"
          placeholder="any"
          value={stops.cost}
          onChange={(event) => select({ cost: event.currentTarget.value })}
        />
      </label>
      <label class="check">
        <input type="checkbox" checked={stops.error} onChange={(event) => select({ error: event.currentTarget.checked ? "true" : null })} /> error
      </label>
    </form>
  );
  if (!narrow.value) return form;
  return (
    <details class="stops-folded" open={!stops.isEmpty}>
      <summary>Breakpoints</summary>
      {form}
    </details>
  );
}

function isFailed(step: Step): boolean {
  return step.status !== null && !["ok", "running", "done"].includes(step.status);
}

function titleOf(step: Step): string {
  if (step.kind === "message") return step.role ?? "message";
  return step.name ?? step.model ?? step.type;
}

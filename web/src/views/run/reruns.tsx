// Making a run again from a step on, and how its reruns compare with it.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { at, Problem, send } from "../../base/api";
import { count, duration, exact, money, plural } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useEvery } from "../../base/live";
import { asProblem, useGet } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import { Copy, Crumb, Head, Id, Status } from "../../ui/bits";
import { Replaced, Unified } from "../../ui/diff";
import { Dialog } from "../../ui/dialog";
import { Alone, Answer, Empty } from "../../ui/states";

interface Job {
  id: string;
  status: "running" | "done" | "failed" | "cancelled";
  total: number;
  done: number;
  group: string | null;
  error: string | null;
}

interface Member {
  run: string;
  variant: string;
  repetition: number;
  status: string;
  error: string | null;
  steps: number;
  departure: { step: number; what: string; name: string; original: string; here: string } | null;
  messages: number;
  common_messages: number;
  files: { path: string; change: string; text: string | null }[];
  verify: { command: string; exit_code: number; output: string } | null;
  tokens: number;
  cost: number | null;
  took_us: number;
  final: string;
}

interface Spread {
  mean: number;
  deviation: number;
  least: number;
  most: number;
}

interface Variant {
  variant: string;
  runs: number;
  ok: number;
  verified: number | null;
  first_departure: number | null;
  tokens: Spread | null;
  cost: Spread | null;
  seconds: Spread | null;
}

interface RerunsOf {
  run: string;
  calls: number;
  entry: string | null;
  can_start: boolean;
  why_not: string | null;
  jobs: Job[];
  groups: string[];
  comparison: { group: string; from_step: number; original: Member; reruns: Member[]; variants: Variant[] } | null;
}

/** More runs than these are rows of the table, and not columns. */
const MOST_COLUMNS = 4;
const WHAT: Record<string, string> = { asked: "asked for something else", answered: "got another answer", ended: "ended" };

export function Reruns({ id }: { id: string }) {
  const group = route.value.query["group"] ?? null;
  const asked = useGet<RerunsOf>(at(["runs", id, "reruns"], { group }));
  const isRunning = asked.data?.jobs.some((each) => each.status === "running") ?? false;
  useEvery(1, isRunning, asked.reload);
  useKeys({ Escape: () => go(["runs", id]) });
  if (!asked.data) {
    return (
      <Alone title={`Reruns of ${id}`}>
        <Answer asked={asked} what="Comparing">
          {() => null}
        </Answer>
      </Alone>
    );
  }
  return <Shown found={asked.data} onChange={asked.reload} />;
}

function Shown({ found, onChange }: { found: RerunsOf; onChange: () => void }) {
  const [isAsking, ask] = useState(false);
  const { comparison } = found;
  return (
    <div class="view">
      <Head
        above={
          <>
            <Crumb path={["runs"]}>Runs</Crumb> / <Id id={found.run} to={href(["runs", found.run])} />
          </>
        }
        title="Reruns"
        aside={
          <button type="button" onClick={() => ask(true)}>
            Rerun …
          </button>
        }
      />
      <div class="scroll pad" tabIndex={0} role="group" aria-label="Reruns">
        {found.jobs.map((job) => (
          <JobLine key={job.id} run={found.run} job={job} onChange={onChange} />
        ))}
        {found.groups.length > 1 && comparison && (
          <label class="field narrow">
            Made together
            <select value={comparison.group} onChange={(event) => select({ group: event.currentTarget.value })}>
              {found.groups.map((each, index) => (
                <option key={each} value={each}>
                  {index === 0 ? `${each} (newest)` : each}
                </option>
              ))}
            </select>
          </label>
        )}
        {comparison ? (
          <Compared found={comparison} />
        ) : (
          <Empty title="No reruns">
            A rerun answers the steps before one from the recording, and goes on from there for real, in a fork: with another model, prompt or
            parameter.
          </Empty>
        )}
      </div>
      {isAsking && <RerunDialog run={found.run} from={1} onClose={() => ask(false)} onStarted={onChange} />}
    </div>
  );
}

function JobLine({ run, job, onChange }: { run: string; job: Job; onChange: () => void }) {
  const label = `${job.done} of ${plural(job.total, "rerun")} ${job.status === "running" ? "made" : job.status}`;
  return (
    <div class="job">
      <p role="status">
        <Status status={job.status === "done" ? "ok" : job.status} /> {label}
      </p>
      {job.status === "running" && (
        <>
          <progress max={job.total} value={job.done} aria-label={label} />
          <button type="button" class="quiet" onClick={() => void send("DELETE", at(["runs", run, "reruns", job.id])).then(onChange, onChange)}>
            Cancel
          </button>
        </>
      )}
      {job.error && (
        <pre class="trouble" tabIndex={0}>
          {job.error}
        </pre>
      )}
    </div>
  );
}

function Compared({ found }: { found: NonNullable<RerunsOf["comparison"]> }) {
  const members = [found.original, ...found.reruns];
  const hasVerify = members.some((each) => each.verify !== null);
  const rows: [string, (each: Member, isOriginal: boolean) => ComponentChildren][] = [
    ["status", (each) => <Status status={each.status} />],
    ["departs", (each, isOriginal) => (isOriginal ? "" : each.departure ? `at step ${each.departure.step}` : "never")],
    ["messages", (each, isOriginal) => (isOriginal ? exact(each.messages) : `${exact(each.messages)} (${exact(each.common_messages)} the same)`)],
    ["files", (each, isOriginal) => (isOriginal ? "" : each.files.length > 0 ? `${plural(each.files.length, "file")} ${each.files.length === 1 ? "differs" : "differ"}` : "the same")],
    ...(hasVerify
      ? [["verification", (each: Member) => (each.verify ? <Status status={each.verify.exit_code === 0 ? "ok" : "failed"} /> : "")] as [string, (each: Member) => ComponentChildren]]
      : []),
    ["tokens", (each) => <Changed value={each.tokens} base={found.original.tokens} show={count} isOriginal={each === found.original} />],
    ["cost", (each) => (each.cost === null ? "unpriced" : <Changed value={each.cost} base={found.original.cost ?? 0} show={dollars} isOriginal={each === found.original} />)],
    ["time", (each) => <Changed value={each.took_us} base={found.original.took_us} show={duration} isOriginal={each === found.original} />],
    ["last answer", (each) => <span class="final">{each.final}</span>],
  ];
  const repeated = found.variants.filter((each) => each.runs > 1);
  const nameOf = (each: Member) => (
    <>
      {each === found.original ? "original" : each.variant}
      {each !== found.original && repeated.some((variant) => variant.variant === each.variant) && ` #${each.repetition}`}{" "}
      <Id id={each.run} to={href(["runs", each.run])} />
    </>
  );
  return (
    <>
      <p class="muted">
        Steps before {exact(found.from_step)} are answered from the recording. Tokens, cost and time are those from step {exact(found.from_step)} on.
      </p>
      {repeated.length > 0 && <Variants variants={repeated} hasVerify={hasVerify} />}
      <h2>Each rerun</h2>
      {members.length <= MOST_COLUMNS ? (
        <table class="plain wide compare">
          <thead>
            <tr>
              <th scope="col">
                <span class="hidden">figure</span>
              </th>
              {members.map((each) => (
                <th scope="col" key={each.run}>
                  {nameOf(each)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(([label, value]) => (
              <tr key={label}>
                <th scope="row">{label}</th>
                {members.map((each) => (
                  <td key={each.run}>{value(each, each === found.original)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <div class="across" tabIndex={0} role="group" aria-label="Each rerun">
          <table class="plain wide">
            <thead>
              <tr>
                <th scope="col">rerun</th>
                {rows.map(([label]) => (
                  <th scope="col" key={label}>
                    {label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {members.map((each) => (
                <tr key={each.run}>
                  <th scope="row">{nameOf(each)}</th>
                  {rows.map(([label, value]) => (
                    <td key={label}>{value(each, each === found.original)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found.reruns.map((each) => (
        <Differences key={each.run} member={each} />
      ))}
    </>
  );
}

function Variants({ variants, hasVerify }: { variants: readonly Variant[]; hasVerify: boolean }) {
  return (
    <>
      <h2>Variants</h2>
      <table class="plain wide">
        <thead>
          <tr>
            <th scope="col">variant</th>
            <th scope="col">ended well</th>
            {hasVerify && <th scope="col">verified</th>}
            <th scope="col">departs first</th>
            <th scope="col">tokens</th>
            <th scope="col">cost</th>
            <th scope="col">time</th>
          </tr>
        </thead>
        <tbody>
          {variants.map((each) => (
            <tr key={each.variant}>
              <th scope="row">{each.variant}</th>
              <td>
                {exact(each.ok)} of {exact(each.runs)}
              </td>
              {hasVerify && (
                <td>
                  {exact(each.verified)} of {exact(each.runs)}
                </td>
              )}
              <td>{each.first_departure === null ? "never" : `step ${each.first_departure}`}</td>
              <td>
                <Range spread={each.tokens} show={count} />
              </td>
              <td>
                <Range spread={each.cost} show={dollars} />
              </td>
              <td>
                <Range spread={each.seconds} show={(seconds) => duration(seconds === null ? null : seconds * 1e6)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** Mean and standard deviation; the extremes are in the title. */
function Range({ spread, show }: { spread: Spread | null; show: (value: number | null) => string }) {
  if (!spread) return <>–</>;
  return (
    <span title={`${show(spread.least)} to ${show(spread.most)}`}>
      {show(spread.mean)} <span class="muted">± {show(spread.deviation)}</span>
    </span>
  );
}

function Changed({ value, base, show, isOriginal }: { value: number; base: number; show: (value: number | null) => string; isOriginal: boolean }) {
  if (isOriginal || value === base || base === 0) return <>{show(value)}</>;
  const share = Math.round((value / base - 1) * 100);
  return (
    <>
      {show(value)} <small class={`delta ${share < 0 ? "better" : "worse"}`}>{share === 0 ? "about the same" : `${share > 0 ? "+" : "−"}${exact(Math.abs(share))} %`}</small>
    </>
  );
}

function Differences({ member }: { member: Member }) {
  const { departure, files, verify, error } = member;
  if (!departure && files.length === 0 && !verify?.output && !error) return null;
  return (
    <section>
      <h2>
        {member.variant} <Id id={member.run} to={href(["runs", member.run])} />
      </h2>
      {error && <p class="trouble">{error}</p>}
      {departure && (
        <>
          <p>
            At step {exact(departure.step)} it {WHAT[departure.what] ?? departure.what}:
          </p>
          <Replaced before={departure.original} after={departure.here} />
        </>
      )}
      {files.map((each) => (
        <details key={each.path} open={files.length <= 3}>
          <summary>
            <span class={`tag ${each.change}`}>{each.change}</span> <code>{each.path}</code>
          </summary>
          {each.text ? <Unified text={each.text} label={`Changes in ${each.path}`} /> : <p class="muted">No text to compare.</p>}
        </details>
      ))}
      {verify?.output && (
        <details>
          <summary>
            <code>{verify.command}</code> ended with {exact(verify.exit_code)}
          </summary>
          <pre tabIndex={0}>{verify.output}</pre>
        </details>
      )}
    </section>
  );
}

/** What to change in a rerun; the command for the terminal is always there. */
export function RerunDialog({ run, from, onClose, onStarted }: { run: string; from: number; onClose: () => void; onStarted?: () => void }) {
  const asked = useGet<RerunsOf>(at(["runs", run, "reruns"]));
  const [step, setStep] = useState(String(from));
  const [models, setModels] = useState("");
  const [prompt, setPrompt] = useState("");
  const [parameters, setParameters] = useState("");
  const [repeat, setRepeat] = useState("1");
  const [verify, setVerify] = useState("");
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const chosen = models.split("\n").map((each) => each.trim()).filter(Boolean);
  const pairs = parameters.split("\n").map((each) => each.trim()).filter(Boolean);
  const command = [
    `treering rerun ${quoted(run)} --from ${step || "1"}`,
    ...chosen.map((each) => `--model ${quoted(each)}`),
    ...(prompt ? ["--prompt-file prompt.txt"] : []),
    ...pairs.map((each) => `--set ${quoted(each)}`),
    ...(repeat !== "1" ? [`-n ${repeat}`] : []),
    ...(verify ? [`--verify ${quoted(verify)}`] : []),
  ].join(" ");
  const about = asked.data;
  const start = async () => {
    setBusy(true);
    setTrouble("");
    try {
      await send("POST", at(["runs", run, "reruns"]), {
        from_step: Number(step),
        model: chosen,
        prompt: prompt ? [prompt] : [],
        parameters: Object.fromEntries(pairs.map(parsedPair)),
        repeat: Number(repeat),
        verify: verify || null,
      });
      onClose();
      onStarted?.();
      go(["runs", run, "reruns"]);
    } catch (error) {
      setTrouble(asProblem(error).message);
      setBusy(false);
    }
  };
  return (
    <Dialog title="Rerun from here" onClose={onClose} wide>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void start();
        }}
      >
        <p>
          Steps before it are answered from the recording; from there on models and tools are called for real, in a fork with its own thread,
          memory and files. The run stays as it is.
        </p>
        <div class="rerun-fields">
          <label class="field">
            First call to make for real{about && about.calls > 0 ? `, of ${exact(about.calls)}` : ""}
            <input type="number" min={1} {...(about && about.calls > 0 ? { max: about.calls } : {})} required value={step} onInput={(event) => setStep(event.currentTarget.value)} />
          </label>
          <label class="field">
            Repetitions
            <input type="number" min={1} max={100} required value={repeat} onInput={(event) => setRepeat(event.currentTarget.value)} />
          </label>
          <label class="field">
            Models, one a line (empty: the same)
            <textarea rows={2} spellcheck={false} value={models} onInput={(event) => setModels(event.currentTarget.value)} />
          </label>
          <label class="field">
            Parameters, one a line, such as temperature=0
            <textarea rows={2} spellcheck={false} value={parameters} onInput={(event) => setParameters(event.currentTarget.value)} />
          </label>
          <label class="field">
            System prompt (empty: the same)
            <textarea rows={3} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
          </label>
          <label class="field">
            Verify with a command, such as pytest -q
            <input type="text" spellcheck={false} value={verify} onInput={(event) => setVerify(event.currentTarget.value)} />
          </label>
        </div>
        <div class="command">
          <code tabIndex={0}>{command}</code>
          <Copy text={command} label="Copy command" />
        </div>
        {about && !about.can_start && <p class="muted">Run it in a terminal where the agent’s code is. This server does not start it: {about.why_not}.</p>}
        {asked.problem && <p class="trouble">{asked.problem.message}</p>}
        {trouble && (
          <p class="trouble" role="alert">
            {trouble}
          </p>
        )}
        <p class="buttons">
          <button type="button" class="quiet" onClick={onClose}>
            Cancel
          </button>
          {about?.can_start && (
            <button type="submit" class="primary" disabled={busy}>
              {busy ? "…" : "Start the rerun"}
            </button>
          )}
        </p>
      </form>
    </Dialog>
  );
}

function parsedPair(text: string): [string, unknown] {
  const [name, ...rest] = text.split("=");
  if (!name || rest.length === 0) throw new Problem(0, "Invalid parameter", `“${text}” is no parameter; write it like temperature=0.`);
  const value = rest.join("=");
  try {
    return [name, JSON.parse(value) as unknown];
  } catch {
    return [name, value];
  }
}

/** Text as a word of a command line. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function dollars(amount: number | null): string {
  return amount === null ? "–" : money({ amount, currency: "USD" });
}

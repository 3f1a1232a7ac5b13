// The store: its content, growth, integrity and garbage.
import { useMemo, useState } from "preact/hooks";

import { at, send } from "../base/api";
import { bytes, exact, plural } from "../base/format";
import { asProblem, useGet } from "../base/query";
import { Figure, Head, Time } from "../ui/bits";
import { DayChart } from "../ui/chart";
import { Share } from "../ui/share";
import { Answer } from "../ui/states";

const SEALS_SHOWN = 20;

interface Stats {
  url: string;
  space: string;
  rows: Record<string, number>;
  bytes: Record<string, number>;
  total_bytes: number;
  growth_bytes: Record<string, number>;
  disk_bytes: number | null;
}

interface Verification {
  ok: boolean;
  problems: { kind: string; where: string; detail: string }[];
  checked: Record<string, number>;
  more: number;
}

interface Seals {
  seals: { number: number; sealed_at_us: number; commits: number; to_seq: number; root: string; signature: string | null }[];
}

interface AuditReport {
  ok: boolean;
  seals: number;
  commits: number;
  erased: number;
  unsealed: number;
  findings: { kind: string; what: string; detail: string }[];
  problems: { kind: string; where: string; detail: string }[];
}

interface Collection {
  dropped: Record<string, number>;
  kept: Record<string, number>;
  swept: { objects: number; bodies: number; lists: number; packs: number; bytes: number; kept_objects: number };
}

interface Archive {
  url: string | null;
  rows: number;
  bytes: number;
  files: { path: string; day: string; rows: number; bytes: number }[];
}

export function Store() {
  const asked = useGet<Stats>(at(["store", "stats"]));
  return (
    <div class="view">
      <Head title="Store" />
      <Answer asked={asked} what="Loading store">
        {(stats) => (
          <div class="scroll pad" tabIndex={0} role="group" aria-label="Store">
            <dl class="figures big">
              <Figure label="stored" value={bytes(stats.total_bytes)} />
              {stats.disk_bytes !== null && <Figure label="on disk" value={bytes(stats.disk_bytes)} />}
              <Figure label="commits" value={exact(stats.rows["commits"])} />
              <Figure label="events" value={exact(stats.rows["events"])} />
              <Figure label="objects" value={exact(stats.rows["objects"])} />
            </dl>
            <p class="muted">
              <code>{stats.url}</code>, namespace <code>{stats.space}</code>
            </p>
            <Growth growth={stats.growth_bytes} />
            <Kinds stats={stats} />
            <Verify />
            <Audit />
            <Archived />
            <Sweep />
          </div>
        )}
      </Answer>
    </div>
  );
}

function Growth({ growth }: { growth: Record<string, number> }) {
  const days = useMemo(() => Object.keys(growth).sort(), [growth]);
  const series = useMemo(() => [{ label: "new bytes", values: days.map((day) => growth[day] ?? 0) }], [days]);
  if (days.length === 0) return <p class="muted">No commits yet.</p>;
  return (
    <section>
      <h2>Growth</h2>
      <DayChart days={days} series={series} format={(value) => bytes(Math.round(value))} label="New bytes by day" height={150} />
    </section>
  );
}

function Kinds({ stats }: { stats: Stats }) {
  const kinds = Object.entries(stats.bytes).sort(([, one], [, other]) => other - one);
  return (
    <section>
      <h2>Content</h2>
      <table class="plain">
        <tbody>
          {kinds.map(([kind, size]) => (
            <tr key={kind}>
              <th scope="row">{kind}</th>
              <td class="number">{stats.rows[kind] === undefined ? "" : exact(stats.rows[kind])}</td>
              <td class="number">{bytes(size)}</td>
              <td class="share-cell">
                <Share of={size} total={stats.total_bytes} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Verify() {
  const { state, start } = useWork<Verification>(() => send("POST", at(["store", "verify"])));
  return (
    <section>
      <h2>Integrity</h2>
      <p>Rehashes all content and checks every reference. Changes nothing.</p>
      <button type="button" onClick={start} disabled={state.busy}>
        {state.busy ? "Verifying …" : "Verify"}
      </button>
      {state.trouble && <Trouble text={state.trouble} />}
      {state.done && (
        <div role="status">
          <p class={state.done.ok ? "verdict good" : "verdict bad"}>
            {state.done.ok ? "No problems found." : `${plural(state.done.problems.length + state.done.more, "problem")}`}
          </p>
          <p class="muted">
            {Object.entries(state.done.checked)
              .filter(([, value]) => value)
              .map(([name, value]) => (name === "bytes" ? bytes(value) : `${exact(value)} ${name}`))
              .join(", ")}{" "}
            checked
          </p>
          {state.done.problems.length > 0 && (
            <ul>
              {state.done.problems.map((problem, index) => (
                <li key={index}>
                  <strong>{problem.kind}</strong> <code>{problem.where}</code> {problem.detail}
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
    </section>
  );
}

function Audit() {
  const asked = useGet<Seals>(at(["store", "seals"]));
  const { state, start } = useWork<AuditReport>(() => send("POST", at(["store", "seals", "verify"]), { against: [] }));
  const differences = state.done ? state.done.findings.filter((each) => each.kind !== "erased") : [];
  return (
    <section>
      <h2>Seals</h2>
      <p>
        Compares the history with the seals in this store. An operator could have rewritten these too:{" "}
        <code>treering audit verify --against</code> compares it with published ones.
      </p>
      <Answer asked={asked} what="Loading seals">
        {({ seals }) =>
          seals.length === 0 ? (
            <p class="muted">
              No seals yet. <code>treering audit seal</code> makes one.
            </p>
          ) : (
            <>
              <table class="plain">
                <thead>
                  <tr>
                    <th scope="col">Seal</th>
                    <th scope="col">At</th>
                    <th scope="col">Commits</th>
                    <th scope="col">Signed</th>
                    <th scope="col">Root</th>
                  </tr>
                </thead>
                <tbody>
                  {seals
                    .slice(-SEALS_SHOWN)
                    .reverse()
                    .map((seal) => (
                      <tr key={seal.number}>
                        <td>{seal.number}</td>
                        <td>
                          <Time at={seal.sealed_at_us} />
                        </td>
                        <td class="number">{exact(seal.commits)}</td>
                        <td>{seal.signature ? "yes" : "no"}</td>
                        <td>
                          <code>{seal.root.slice(0, 16)}</code>
                        </td>
                      </tr>
                    ))}
                </tbody>
              </table>
              {seals.length > SEALS_SHOWN && <p class="muted">{plural(seals.length - SEALS_SHOWN, "older seal")} not shown</p>}
              <button type="button" onClick={start} disabled={state.busy}>
                {state.busy ? "Comparing …" : "Compare with seals"}
              </button>
            </>
          )
        }
      </Answer>
      {state.trouble && <Trouble text={state.trouble} />}
      {state.done && (
        <div role="status">
          <p class={state.done.ok ? "verdict good" : "verdict bad"}>
            {state.done.ok ? "As sealed." : "Not as sealed."}
          </p>
          <p class="muted">
            {plural(state.done.seals, "seal")}, {plural(state.done.commits, "commit")}, {plural(state.done.erased, "erased row")},{" "}
            {plural(state.done.unsealed, "commit")} after the last seal
          </p>
          <ul>
            {differences.map((each, index) => (
              <li key={index}>
                <strong>{each.kind}</strong> <code>{each.what}</code> {each.detail}
              </li>
            ))}
            {state.done.problems.map((each, index) => (
              <li key={`problem ${index}`}>
                <strong>{each.kind}</strong> <code>{each.where}</code> {each.detail}
              </li>
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}

function Sweep() {
  const { state, start } = useWork<Collection>(() => send("POST", at(["store", "gc"]), { dry_run: true }));
  return (
    <section>
      <h2>Garbage collection</h2>
      <p>
        Finds content that nothing refers to any more. This is a dry run; <code>treering gc</code> deletes it.
      </p>
      <button type="button" onClick={start} disabled={state.busy}>
        {state.busy ? "Running …" : "Dry run"}
      </button>
      {state.trouble && <Trouble text={state.trouble} />}
      {state.done && (
        <p role="status" class="verdict">
          {bytes(state.done.swept.bytes)} can be freed: {plural(state.done.swept.objects, "object")},{" "}
          {plural(state.done.swept.bodies, "body", "bodies")}, {plural(state.done.swept.lists, "list")},{" "}
          {plural(state.done.swept.packs, "pack")}.
        </p>
      )}
    </section>
  );
}

function Trouble({ text }: { text: string }) {
  return (
    <p class="trouble" role="alert">
      {text}
    </p>
  );
}

interface Work<T> {
  busy: boolean;
  done: T | null;
  trouble: string;
}

function useWork<T>(work: () => Promise<T>): { state: Work<T>; start: () => void } {
  const [state, setState] = useState<Work<T>>({ busy: false, done: null, trouble: "" });
  const start = () => {
    setState({ busy: true, done: null, trouble: "" });
    work().then(
      (done) => setState({ busy: false, done, trouble: "" }),
      (error: unknown) => setState({ busy: false, done: null, trouble: asProblem(error).message }),
    );
  };
  return { state, start };
}

function Archived() {
  const asked = useGet<Archive>(at(["store", "archive"]));
  const found = asked.data;
  if (!found || found.files.length === 0) return null;
  const days = found.files.map((file) => file.day);
  return (
    <section>
      <h2>Archive</h2>
      <p>
        {plural(found.rows, "event")} of {days[0]} to {days.at(-1)}, in {plural(found.files.length, "Parquet file")} ({bytes(found.bytes)}). Archived runs stay readable here.
      </p>
    </section>
  );
}

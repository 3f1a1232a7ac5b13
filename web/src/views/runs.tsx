// All runs, newest first, updated live.
import { useMemo, useState } from "preact/hooks";

import { at } from "../base/api";
import { count, duration, moneys, plural } from "../base/format";
import { useKeys } from "../base/keys";
import { useChanges, useEvery } from "../base/live";
import { usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { RunLine } from "../base/shapes";
import { Head, Id, Status, Tags, Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Search } from "../ui/search";
import { Sparkline } from "../ui/sparkline";
import { Answer, Empty } from "../ui/states";
import { Found } from "./found";

const idOf = (run: RunLine) => run.id;
const DRAWN = 80;
const STATUSES = ["running", "ok", "error", "crashed"];

export function Runs() {
  const { query } = route.value;
  const { agent, status, thread, tag, q } = query;
  const listed = usePages<RunLine>(at(["runs"], { agent, status, thread, tag, limit: 100 }), "runs", idOf);
  useChanges((event) => event.kind === "run" || event.kind.startsWith("run."), listed.reload);
  useEvery(10, Boolean(listed.data?.some((run) => run.status === "running")), listed.reload);
  const isFiltered = Boolean(agent || status || thread || tag);
  return (
    <div class="view">
      <Head
        title="Runs"
        aside={<Search label="Search" value={q ?? ""} onChange={(text) => select({ q: text })} />}
      >
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Status
            <select value={status ?? ""} onChange={(event) => select({ status: event.currentTarget.value })}>
              <option value="">any</option>
              {STATUSES.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <Filter label="Agent" name="agent" value={agent} />
          <Filter label="Thread" name="thread" value={thread} />
          <Filter label="Tag" name="tag" value={tag} />
          {isFiltered && (
            <a class="small" href={href(["runs"], { q })}>
              Clear
            </a>
          )}
        </form>
      </Head>
      {q ? (
        <Found q={q} />
      ) : (
        <Answer asked={listed} what="Loading runs">
          {(runs) =>
            runs.length > 0 ? (
              <List runs={runs} onEnd={listed.more} hasMore={listed.hasMore} />
            ) : isFiltered ? (
              <Empty title="No matching runs">
                <a href="#/runs">Show all runs</a>
              </Empty>
            ) : (
              <Empty title="No runs yet">
                <p>A run is one execution of an agent. Record one to see it here, live:</p>
                <pre>
                  {'with store.run(agent="planner") as run:\n    run.message("user", "Where is my refund?")'}
                </pre>
              </Empty>
            )
          }
        </Answer>
      )}
    </div>
  );
}

function Filter({ label, name, value }: { label: string; name: string; value: string | undefined }) {
  return (
    <label>
      {label}
      <input
        type="text"
        class="short"
        value={value ?? ""}
        placeholder="any"
        onChange={(event) => select({ [name]: event.currentTarget.value.trim() })}
      />
    </label>
  );
}

function List({ runs, onEnd, hasMore }: { runs: RunLine[]; onEnd: () => void; hasMore: boolean }) {
  const [place, setPlace] = useState(-1);
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const mark = (id: string) => {
    const next = new Set(marked);
    if (!next.delete(id)) next.add(id);
    setMarked(next);
  };
  const compare = () => marked.size > 1 && go(["compare"], { runs: [...marked].join(",") });
  useKeys({ x: () => runs[place] && mark(runs[place].id), c: compare });
  const drawn = useMemo(() => runs.slice(0, DRAWN).toReversed(), [runs]);
  const longest = useMemo(() => runs.reduce((most, run) => Math.max(most, run.duration_us ?? 0), 1), [runs]);
  return (
    <>
      <div class="sparks">
        <div>
          <Sparkline values={drawn.map(costOf)} label={`Cost of the last ${drawn.length} runs`} />
          <span class="muted small">cost, last {plural(drawn.length, "run")}</span>
        </div>
        <div>
          <Sparkline values={drawn.map((run) => run.duration_us)} tone="lichen" label={`Duration of the last ${drawn.length} runs`} />
          <span class="muted small">duration</span>
        </div>
        <div>
          <Sparkline values={drawn.map((run) => run.tokens)} tone="moss" label={`Tokens of the last ${drawn.length} runs`} />
          <span class="muted small">tokens</span>
        </div>
        <p class="spacer muted small">
          {plural(runs.length, "run")}
          {hasMore ? "+" : ""}
        </p>
        <button type="button" disabled={marked.size < 2} onClick={compare}>
          Compare{marked.size > 0 ? ` ${marked.size}` : ""}
        </button>
      </div>
      <div class="table runs-table">
        <div class="table-head" aria-hidden="true">
          <span />
          <span>status</span>
          <span>agent</span>
          <span>thread</span>
          <span>started</span>
          <span class="number">duration</span>
          <span class="number">tokens</span>
          <span class="number">cost</span>
          <span />
        </div>
        <Rows
          label="Runs"
          items={runs}
          height={40}
          idOf={idOf}
          selected={place}
          onSelect={setPlace}
          onOpen={(index) => go(["runs", runs[index]!.id])}
          onEnd={onEnd}
          row={(run) => (
            <div class="line with-mark">
              <input
                type="checkbox"
                aria-label={`Select ${run.agent ?? "run"} ${run.id} to compare`}
                checked={marked.has(run.id)}
                onChange={() => mark(run.id)}
              />
              <a class="line" href={href(["runs", run.id])}>
                <Status status={run.status} />
                <span class="two">
                  <strong>{run.agent ?? "run"}</strong> <Id id={run.id} />
                </span>
                <span class="cut">{run.thread ?? ""}</span>
                <span class="muted">
                  <Time at={run.started_at_us} />
                </span>
                <span class="number took">
                  {run.duration_us === null ? "…" : duration(run.duration_us)}
                  <i style={{ width: `${((run.duration_us ?? 0) / longest) * 100}%` }} />
                </span>
                <span class="number">{count(run.tokens)}</span>
                <span class="number">{moneys(run.cost)}</span>
                <span class="cut">
                  <Tags tags={run.tags} />
                </span>
              </a>
            </div>
          )}
        />
      </div>
    </>
  );
}

/** The amount in the first currency; good enough for a sparkline. */
function costOf(run: RunLine): number {
  return Number(run.cost[0]?.amount ?? 0);
}

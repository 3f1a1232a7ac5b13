// All runs, newest first, updated live.
import { useMemo, useState } from "preact/hooks";

import { at } from "../base/api";
import { count, duration, moneys, outlierCap, plural, visible } from "../base/format";
import { useKeys } from "../base/keys";
import { useChanges, useEvery } from "../base/live";
import { usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { RunLine } from "../base/shapes";
import { Head, Id, Name, Status, Tags, Time } from "../ui/bits";
import { Rows } from "../ui/rows";
import { Search } from "../ui/search";
import { Sparkline } from "../ui/sparkline";
import { Answer, Empty } from "../ui/states";
import { Found } from "./found";

const idOf = (run: RunLine) => run.id;
const DRAWN = 80;
const STATUSES = ["running", "ok", "error", "crashed", "unfinished"];
const PERIODS = [
  ["1h", "last hour", 3600],
  ["24h", "last 24 hours", 86_400],
  ["7d", "last 7 days", 7 * 86_400],
  ["30d", "last 30 days", 30 * 86_400],
] as const;
const ORDERS = [
  ["cost", "highest cost"],
  ["tokens", "most tokens"],
  ["duration", "longest"],
] as const;
const CUSTOM = "custom";

export function Runs() {
  const { query } = route.value;
  const { agent, status, thread, tag, namespace, q, period, since, until } = query;
  const sort = ORDERS.find(([name]) => name === query["sort"])?.[0];
  const range = useMemo(() => rangeOf(period, since, until), [period, since, until]);
  const asked = { agent, status, thread, tag, namespace, sort, ...range, limit: 100 };
  const listed = usePages<RunLine>(at(["runs"], asked), "runs", idOf);
  useChanges((event) => event.kind === "run" || event.kind.startsWith("run."), listed.reload);
  useEvery(10, Boolean(listed.data?.some((run) => run.status === "running")), listed.reload);
  const isFiltered = Boolean(agent || status || thread || tag || namespace || period);
  const search = <Search label="Search" value={q ?? ""} onChange={(text) => select({ q: text })} />;
  if (q) {
    return (
      <div class="view">
        <Head title="Search" aside={search} />
        <Found q={q} />
      </div>
    );
  }
  return (
    <div class="view">
      <Head title="Runs" aside={search}>
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
          <label>
            Started
            <select value={period ?? ""} onChange={(event) => select({ period: event.currentTarget.value, since: null, until: null })}>
              <option value="">any time</option>
              {PERIODS.map(([name, words]) => (
                <option key={name} value={name}>
                  {words}
                </option>
              ))}
              <option value={CUSTOM}>between …</option>
            </select>
          </label>
          {period === CUSTOM && (
            <>
              <Moment label="From" name="since" value={since} />
              <Moment label="Until" name="until" value={until} />
            </>
          )}
          <label>
            Sort by
            <select value={sort ?? ""} onChange={(event) => select({ sort: event.currentTarget.value })}>
              <option value="">newest</option>
              {ORDERS.map(([name, words]) => (
                <option key={name} value={name}>
                  {words}
                </option>
              ))}
            </select>
          </label>
          {isFiltered && (
            <a class="small" href={href(["runs"])}>
              Clear
            </a>
          )}
        </form>
      </Head>
      <Answer asked={listed} what="Loading runs">
        {(runs) =>
          runs.length > 0 ? (
            <List runs={runs} isSorted={sort !== undefined} onEnd={listed.more} hasMore={listed.hasMore} />
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

function Moment({ label, name, value }: { label: string; name: string; value: string | undefined }) {
  return (
    <label>
      {label}
      <input type="datetime-local" value={value ?? ""} onChange={(event) => select({ [name]: event.currentTarget.value })} />
    </label>
  );
}

/** The range of a period that ends now, or of two times of day here. */
function rangeOf(period: string | undefined, since: string | undefined, until: string | undefined) {
  const us = (text: string | undefined) => (text && !Number.isNaN(Date.parse(text)) ? Date.parse(text) * 1000 : null);
  if (period === CUSTOM) return { since_us: us(since), until_us: us(until) };
  const seconds = PERIODS.find(([name]) => name === period)?.[2];
  return { since_us: seconds ? Math.floor(Date.now() / 1000 - seconds) * 1_000_000 : null };
}

interface ListProps {
  runs: RunLine[];
  isSorted: boolean;
  onEnd: () => void;
  hasMore: boolean;
}

function List({ runs, isSorted, onEnd, hasMore }: ListProps) {
  const [place, setPlace] = useState(-1);
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const mark = (id: string) => {
    const next = new Set(marked);
    if (!next.delete(id)) next.add(id);
    setMarked(next);
  };
  const compare = () => marked.size > 1 && go(["compare"], { runs: [...marked].join(",") });
  useKeys({ x: () => runs[place] && mark(runs[place].id), c: compare });
  const drawn = useMemo(
    () => runs.slice(0, DRAWN).toSorted((one, other) => one.started_at_us - other.started_at_us),
    [runs],
  );
  const which = `${isSorted ? "these" : "the last"} ${plural(drawn.length, "run")}`;
  const now = Date.now() * 1000; // a list with running runs is fetched, and drawn, every ten seconds
  const longest = useMemo(() => outlierCap(runs.map((run) => run.duration_us ?? 0)), [runs]);
  return (
    <>
      <div class="sparks">
        <div>
          <Sparkline values={drawn.map(costOf)} label={`Cost of ${which}`} />
          <span class="muted small">cost of {which}</span>
        </div>
        <div>
          <Sparkline values={drawn.map((run) => run.duration_us)} tone="lichen" label={`Duration of ${which}`} />
          <span class="muted small">duration</span>
        </div>
        <div>
          <Sparkline values={drawn.map((run) => run.tokens)} tone="moss" label={`Tokens of ${which}`} />
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
          <span>run</span>
          <span>started</span>
          <span class="number">duration</span>
          <span class="number">tokens</span>
          <span class="number">cost</span>
        </div>
        <Rows
          label="Runs"
          items={runs}
          height={58}
          tall={112}
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
                <span class="run-words">
                  <span class="two">
                    <strong title={run.agent ?? undefined}>
                      <Name text={run.agent ?? "run"} />
                    </strong>{" "}
                    <Id id={run.id} />
                    {run.thread && <span class="muted cut">{run.thread}</span>}
                    <Tags tags={run.tags} isShort />
                    {run.archived && <span class="tag" title="Its events are in Parquet files">archived</span>}
                  </span>
                  <Gist run={run} />
                </span>
                <span class="muted since">
                  <Time at={run.started_at_us} />
                </span>
                <span class="number took">
                  {duration(run.duration_us ?? (run.status === "running" ? now - run.started_at_us : null))}
                  <i style={{ width: `${Math.min(1, (run.duration_us ?? 0) / longest) * 100}%` }} />
                </span>
                <span class="number">
                  {count(run.tokens)}
                  <span class="unit"> tokens</span>
                </span>
                <span class="number">{moneys(run.cost)}</span>
              </a>
            </div>
          )}
        />
      </div>
    </>
  );
}

/** What was asked, and what came of it. */
function Gist({ run }: { run: RunLine }) {
  const { input, output, error } = run;
  if (!input && !output && !error) return <span class="muted cut">no messages</span>;
  return (
    <span class="cut gist">
      {input && <span class="muted">{visible(input)}</span>}
      {input && (output || error) && <span class="muted">{output?.startsWith("→") ? " " : " → "}</span>}
      {error ? <span class="bad">{visible(error)}</span> : output && visible(output)}
    </span>
  );
}

/** The amount in the first currency; good enough for a sparkline. */
function costOf(run: RunLine): number {
  return Number(run.cost[0]?.amount ?? 0);
}

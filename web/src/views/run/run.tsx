// One run: waterfall, conversation, event details, cost and replay.
import { useEffect, useMemo, useState } from "preact/hooks";

import { at, epoch } from "../../base/api";
import { count, duration, moneys, stamp } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useChanges, useEvery } from "../../base/live";
import { asProblem, useGet } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import { narrow } from "../../base/screen";
import type { RunLine, RunRecord } from "../../base/shapes";
import { Crumb, Figure, Head, Id, Status, Tabs, Tags, Time } from "../../ui/bits";
import { Alone, Answer, Failure, StaleNotice } from "../../ui/states";
import { PartialReply } from "../partial";
import { Conversation } from "./conversation";
import { Details } from "./details";
import { Replay } from "./replay";
import { Spending } from "./spending";
import { Trace } from "./trace";
import { RunEffects, Tree } from "./tree";
import { Waterfall } from "./waterfall";

type Tab = "timeline" | "conversation" | "details" | "cost";

/** The timeline is beside the tabs, or one of them where there is no room. */
const TABS = [
  ["timeline", "Timeline"],
  ["conversation", "Conversation"],
  ["details", "Event"],
  ["cost", "Cost"],
] as const;

export function Run({ id }: { id: string }) {
  const asked = useGet<RunLine>(at(["runs", id]));
  const trace = useMemo(() => new Trace(id), [id]);
  const era = epoch.value;
  useEffect(() => void trace.load(), [trace, era]);
  useEffect(() => () => trace.stop(), [trace]);
  useChanges(
    (event) => event.run === id,
    () => {
      void trace.load();
      asked.reload();
    },
  );
  useEvery(5, asked.data?.status === "running", asked.reload);
  useKeys({ Escape: () => (route.value.query["span"] ? select({ span: null }) : go(["runs"])) });
  if (asked.data) return <Shown run={asked.data} trace={trace} />;
  return (
    <Alone title={`Run ${id}`}>
      <Answer asked={asked} what="Loading run">
        {() => null}
      </Answer>
    </Alone>
  );
}

function Shown({ run, trace }: { run: RunLine; trace: Trace }) {
  const { query } = route.value;
  const isNarrow = narrow.value;
  const tabs = isNarrow ? TABS : TABS.slice(1);
  const tab: Tab = tabs.find(([name]) => name === query["tab"])?.[0] ?? "conversation";
  const span = query["span"] ?? null;
  const version = trace.version.value;
  const isRunning = run.status === "running";
  const clock = useNow(isRunning);
  // Spans still open in a run that has ended are shown as ending with it.
  const over = useMemo(() => Math.max(run.ended_at_us ?? 0, trace.heard()), [version, run.ended_at_us]);
  const now = isRunning ? clock : over;
  const start = trace.start || run.started_at_us;
  const end = useMemo(() => Math.max(trace.end(now), run.ended_at_us ?? 0, start + 1), [version, now, run.ended_at_us]);
  const until = query["at"] === undefined ? null : start + Number(query["at"]);
  const moments = useMemo(() => trace.records.map((each) => each.started_at_us), [version]);
  const choose = (record: RunRecord) =>
    select({ span: record.id, tab: tab === "conversation" ? null : "details" });
  const move = (to: number | null) => select({ at: to === null ? null : to - start });
  const to = (name: Tab) => href(["runs", run.id], { ...query, tab: name === "conversation" ? null : name });
  useKeys({
    "1": () => select({ tab: null }),
    "2": () => select({ tab: "details" }),
    "3": () => select({ tab: "cost" }),
    Enter: () => span && select({ tab: "details" }),
  });
  const problem = trace.failed.value === null ? null : asProblem(trace.failed.value);
  const load = () => void trace.load();
  const waterfall = <Waterfall trace={trace} now={now} until={until} selected={span} onSelect={choose} />;
  return (
    <div class="view run-view">
      <Head
        above={
          <>
            <Crumb path={["runs"]}>Runs</Crumb> / <Id id={run.id} />
          </>
        }
        title={run.agent ?? "run"}
        aside={
          <>
            <Tags tags={run.tags} />
            <a class="button" href={href(["runs", run.id, "steps"])}>
              Step through
            </a>
            <a class="button" href={href(["runs", run.id, "reruns"])}>
              Rerun
            </a>
          </>
        }
      >
        <dl class="figures">
          <Figure label="status" value={<Status status={run.status} />} {...(run.archived ? { note: "archived" } : {})} />
          <Figure label="started" value={<Time at={run.started_at_us} />} note={stamp(run.started_at_us)} />
          <Figure label="duration" value={isRunning ? duration(now - run.started_at_us) : duration(run.duration_us)} />
          <Figure label="tokens" value={count(run.tokens)} />
          <Figure label="cost" value={moneys(run.cost)} {...(run.unpriced_tokens ? { note: `${count(run.unpriced_tokens)} tokens unpriced` } : {})} />
          <Figure label="events" value={count(Math.max(run.events, trace.records.length))} />
          {run.errors > 0 && <Figure label="errors" value={<span class="bad">{count(run.errors)}</span>} />}
          {run.thread && (
            <Figure
              label="thread"
              value={
                run.has_thread ? (
                  <a href={href(["threads", run.thread], { namespace: run.namespace })}>{run.thread}</a>
                ) : (
                  run.thread
                )
              }
              note={
                <a href={href(["runs"], { thread: run.thread, namespace: run.namespace })}>its runs</a>
              }
            />
          )}
        </dl>
        <Tree id={run.id} onChange={load} />
        <RunEffects run={run} />
        {run.thread && <PartialReply thread={run.thread} namespace={run.namespace} run={run.id} />}
      </Head>
      {problem && trace.records.length === 0 ? (
        <Failure problem={problem} retry={load} />
      ) : (
        <>
          <div class="panes">
            {!isNarrow && waterfall}
            <section class="side" aria-label="Run details">
              <Tabs tabs={tabs} now={tab} to={to} label="Run details" />
              <div class="side-body" tabIndex={tab === "details" || tab === "cost" ? 0 : undefined} role="group" aria-label={tab}>
                {tab === "timeline" && waterfall}
                {tab === "conversation" && (
                  <Conversation trace={trace} until={until} selected={span} onSelect={choose} isRunning={isRunning} />
                )}
                {tab === "details" && <Details trace={trace} id={span} run={run} />}
                {tab === "cost" && <Spending trace={trace} run={run} until={until} />}
              </div>
            </section>
          </div>
          {problem && <StaleNotice problem={problem} retry={load} />}
          <Replay start={start} end={end} until={until} moments={moments} onMove={move} />
        </>
      )}
    </div>
  );
}

/** The current time in microseconds; advances only while the run is running. */
function useNow(moving: boolean): number {
  const [now, setNow] = useState(() => Date.now() * 1000);
  useEffect(() => {
    if (!moving) return;
    const timer = setInterval(() => setNow(Date.now() * 1000), 500);
    return () => clearInterval(timer);
  }, [moving]);
  return now;
}

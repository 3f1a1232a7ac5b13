// Scheduled tasks: when they run next, how their occurrences ended, and pausing, running or cancelling them.
import { useState } from "preact/hooks";

import { at, send } from "../base/api";
import { ago, duration, exact, stamp } from "../base/format";
import { useKeys } from "../base/keys";
import { useChanges } from "../base/live";
import { asProblem, usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { OccurrenceReport, Task } from "../base/shapes";
import { Figure, Head, Status, Time } from "../ui/bits";
import { Confirm } from "../ui/dialog";
import { Rows } from "../ui/rows";
import { Answer, Empty } from "../ui/states";

interface TaskLine {
  task: Task;
  next: string[];
}

const taskOf = (line: TaskLine) => line.task.id;

export function Schedules({ id }: { id: string | undefined }) {
  const { query } = route.value;
  const all = query["all"] === "1";
  const asked = usePages<TaskLine>(at(["schedules"], { all: all || null, limit: 100 }), "schedules", taskOf);
  useChanges((event) => event.kind.startsWith("schedule") || event.kind.startsWith("occurrence"), asked.reload);
  useKeys({ Escape: () => (id ? go(["schedules"], query) : undefined) });
  return (
    <div class="view">
      <Head title="Schedules">
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label class="check">
            <input type="checkbox" checked={all} onChange={(event) => select({ all: event.currentTarget.checked ? "1" : null })} />{" "}
            Show finished
          </label>
        </form>
      </Head>
      <Answer asked={asked} what="Loading schedules">
        {(schedules) =>
          schedules.length === 0 ? (
            <Empty title="No scheduled tasks">
              <pre>{'store.schedules.schedule_task("Summarise the night", "cron", "0 7 * * *")'}</pre>
            </Empty>
          ) : (
            <div class={`panes schedule-panes ${id ? "chosen" : ""}`}>
              <Rows
                label="Tasks"
                items={schedules}
                height={72}
                idOf={(line) => line.task.id}
                selected={schedules.findIndex((line) => line.task.id === id)}
                onSelect={(index) => go(["schedules", schedules[index]!.task.id], query)}
                onEnd={asked.more}
                row={(line) => <TaskRow line={line} />}
              />
              <Shown line={schedules.find((line) => line.task.id === id)} id={id} onChange={asked.reload} />
            </div>
          )
        }
      </Answer>
    </div>
  );
}

/** When a task is due: "every 1 h", a cron expression, or a time. */
function Rhythm({ task }: { task: Task }) {
  const value = String(task.value);
  if (task.type === "interval") return <>every {duration(Number(value) * 1e6)}</>;
  if (task.type === "once") return <>once, {stamp(value)}</>;
  return <code>{value}</code>;
}

function TaskRow({ line: { task, next } }: { line: TaskLine }) {
  const status = task.status ?? "active";
  return (
    <a class="document-line" href={href(["schedules", task.id], route.value.query)}>
      <span class="document-name">
        <strong class="cut">{task.prompt}</strong>
        <span class={`tag ${status === "paused" ? "warn" : status === "active" ? "good" : ""}`}>{status}</span>
      </span>
      <span class="muted">
        <Rhythm task={task} />
        {next[0] ? ` · next ${ago(next[0])}` : ""}
        {task.channel ? ` · ${task.channel} ${task.chat_id ?? ""}` : ""}
      </span>
    </a>
  );
}

function Shown({ line, id, onChange }: { line: TaskLine | undefined; id: string | undefined; onChange: () => void }) {
  if (!id) return <Empty title="Choose a task">Its next due times and its past occurrences are shown here.</Empty>;
  if (!line) {
    return (
      <Empty title="This task is not in the list">
        <a href={href(["schedules", id], { all: "1" })}>Show finished tasks</a>
      </Empty>
    );
  }
  return <One key={line.task.id} line={line} onChange={onChange} />;
}

function One({ line: { task, next }, onChange }: { line: TaskLine; onChange: () => void }) {
  const [trouble, setTrouble] = useState("");
  const [asking, ask] = useState(false);
  const occurrences = usePages<OccurrenceReport>(
    at(["schedules", task.id, "occurrences"], { limit: 100 }),
    "occurrences",
    (each) => `${each.scheduled_at_us}/${each.ended_at_us}`,
  );
  useChanges((event) => event.kind.startsWith("occurrence"), occurrences.reload);
  const act = (verb: string) =>
    send("POST", at(["schedules", task.id, verb])).then(
      () => {
        setTrouble("");
        onChange();
        occurrences.reload();
      },
      (error: unknown) => setTrouble(asProblem(error).message),
    );
  const isPaused = task.status === "paused";
  const isOver = task.status !== undefined && task.status !== "active" && !isPaused;
  return (
    <section class="document" aria-label="Task">
      <a class="back" href={href(["schedules"], route.value.query)}>
        All tasks
      </a>
      <h2>{task.prompt}</h2>
      <p class="buttons tight">
        {isPaused ? (
          <button type="button" onClick={() => void act("resume")}>
            Resume
          </button>
        ) : (
          <button type="button" disabled={isOver} onClick={() => void act("pause")}>
            Pause
          </button>
        )}
        <button type="button" disabled={isOver} onClick={() => void act("run")}>
          Run now
        </button>
        <button type="button" class="danger" disabled={isOver} onClick={() => ask(true)}>
          Cancel
        </button>
      </p>
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      <dl class="figures small">
        <Figure label={task.type} value={<Rhythm task={task} />} note={task.type === "interval" ? undefined : (task.tz ?? "UTC")} />
        <Figure label="runs" value={exact(task.runs ?? 0)} />
        <Figure label="last" value={task.last_run_us ? <Time at={task.last_run_us} /> : "never"} />
        <Figure label="id" value={<code>{task.id}</code>} />
      </dl>
      {(task.open_occurrences ?? []).length > 0 && (
        <p class="origin">
          {task.open_occurrences!.map((each) => (
            <span class="tag warn" key={each.at_us}>
              {each.worker ? `running on ${each.worker}` : "waiting for a worker"}
            </span>
          ))}
        </p>
      )}
      <h3>Next due</h3>
      {next.length === 0 ? (
        <p class="muted">{isPaused ? "None while the task is paused." : "None."}</p>
      ) : (
        <ol class="next">
          {next.map((each) => (
            <li key={each}>
              {stamp(each)} <span class="muted">{ago(each)}</span>
            </li>
          ))}
        </ol>
      )}
      <h3>History</h3>
      <Answer asked={occurrences} what="Loading history">
        {(found) =>
          found.length === 0 ? (
            <p class="muted">No occurrences yet.</p>
          ) : (
            <Rows
              label="Occurrences"
              class="occurrences"
              items={found}
              height={36}
              keys={false}
              idOf={(each) => `${each.scheduled_at_us}/${each.ended_at_us}`}
              onEnd={occurrences.more}
              row={(each) => (
                <div class="occurrence">
                  <Status status={each.outcome} />
                  <span title={stamp(each.scheduled_at_us)}>
                    {stamp(each.scheduled_at_us)}
                    {each.count > 1 && ` and ${each.count - 1} more`}
                    {each.late_us > 0 && `, ${duration(each.late_us)} late`}
                  </span>
                  <span class="number">{each.duration_us ? duration(each.duration_us) : ""}</span>
                  <span class="cut muted">{each.reason || (each.manual ? "run now" : "")}</span>
                  {each.run_id && <a href={href(["runs", each.run_id])}>run</a>}
                </div>
              )}
            />
          )
        }
      </Answer>
      {asking && (
        <Confirm
          title="Cancel this task"
          verb="Cancel the task"
          danger
          onClose={() => ask(false)}
          action={async () => {
            await send("DELETE", at(["schedules", task.id]));
            onChange();
          }}
        >
          <p>It will not run again. The history of its occurrences is kept.</p>
        </Confirm>
      )}
    </section>
  );
}

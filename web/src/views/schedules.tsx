// Tasks that come up later: when, what became of them, and stopping or starting them.
import { useState } from "preact/hooks";

import { at, send } from "../base/api";
import { ago, duration, exact, stamp } from "../base/format";
import { useKeys } from "../base/keys";
import { useChanges } from "../base/live";
import { asProblem, useGet, usePages } from "../base/query";
import { go, href, route, select } from "../base/route";
import type { FireReport, Task } from "../base/shapes";
import { Figure, Head, Status, Time } from "../ui/bits";
import { Confirm } from "../ui/dialog";
import { Rows } from "../ui/rows";
import { Answer, Empty } from "../ui/states";

interface TaskLine {
  task: Task;
  next: string[];
}

export function Schedules({ id }: { id: string | undefined }) {
  const { query } = route.value;
  const all = query["all"] === "1";
  const asked = useGet<{ schedules: TaskLine[] }>(at(["schedules"], { all: all || null }));
  useChanges((event) => event.kind.startsWith("schedule") || event.kind.startsWith("fire"), asked.reload);
  useKeys({ Escape: () => (id ? go(["schedules"], query) : undefined) });
  return (
    <div class="view">
      <Head title="Schedules">
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label class="check">
            <input type="checkbox" checked={all} onChange={(event) => select({ all: event.currentTarget.checked ? "1" : null })} />{" "}
            Also what is over
          </label>
        </form>
      </Head>
      <Answer asked={asked} what="Reading schedules">
        {({ schedules }) =>
          schedules.length === 0 ? (
            <Empty title="Nothing is scheduled">
              <pre>{'store.schedules.schedule_task("Summarise the night", "cron", "0 7 * * *")'}</pre>
            </Empty>
          ) : (
            <div class="panes schedule-panes">
              <Rows
                label="Tasks"
                items={schedules}
                height={72}
                idOf={(line) => line.task.id}
                selected={schedules.findIndex((line) => line.task.id === id)}
                onSelect={(index) => go(["schedules", schedules[index]!.task.id], query)}
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

function TaskRow({ line: { task, next } }: { line: TaskLine }) {
  const status = task.status ?? "active";
  return (
    <a class="document-line" href={href(["schedules", task.id], route.value.query)}>
      <span class="document-name">
        <strong class="cut">{task.prompt}</strong>
        <span class={`tag ${status === "paused" ? "warn" : status === "active" ? "good" : ""}`}>{status}</span>
      </span>
      <span class="muted">
        <code>{task.value}</code> {task.type === "interval" ? "seconds" : task.type}
        {next[0] ? ` · next ${ago(next[0])}` : ""}
        {task.channel ? ` · ${task.channel} ${task.chat_id ?? ""}` : ""}
      </span>
    </a>
  );
}

function Shown({ line, id, onChange }: { line: TaskLine | undefined; id: string | undefined; onChange: () => void }) {
  if (!id) return <Empty title="Choose a task">Its next fires and what became of the last ones are shown here.</Empty>;
  if (!line) {
    return (
      <Empty title="This task is not in the list">
        <a href={href(["schedules", id], { all: "1" })}>Look among those that are over</a>
      </Empty>
    );
  }
  return <One key={line.task.id} line={line} onChange={onChange} />;
}

function One({ line: { task, next }, onChange }: { line: TaskLine; onChange: () => void }) {
  const [trouble, setTrouble] = useState("");
  const [asking, ask] = useState(false);
  const fires = usePages<FireReport>(
    at(["schedules", task.id, "fires"], { limit: 100 }),
    "fires",
    (fire) => `${fire.scheduled_at_us}/${fire.ended_at_us}`,
  );
  useChanges((event) => event.kind.startsWith("fire"), fires.reload);
  const act = (verb: string) =>
    send("POST", at(["schedules", task.id, verb])).then(
      () => {
        setTrouble("");
        onChange();
        fires.reload();
      },
      (error: unknown) => setTrouble(asProblem(error).message),
    );
  const isPaused = task.status === "paused";
  const isOver = task.status !== undefined && task.status !== "active" && !isPaused;
  return (
    <section class="document" aria-label="Task">
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
        <Figure label={task.type} value={<code>{task.value}</code>} note={task.tz ?? "UTC"} />
        <Figure label="runs" value={exact(task.runs ?? 0)} />
        <Figure label="last" value={task.last_run_us ? <Time at={task.last_run_us} /> : "never"} />
        <Figure label="id" value={<code>{task.id}</code>} />
      </dl>
      {(task.fires ?? []).length > 0 && (
        <p class="origin">
          {task.fires!.map((fire) => (
            <span class="tag warn" key={fire.at_us}>
              {fire.worker ? `running at ${fire.worker}` : "waits for a worker"}
            </span>
          ))}
        </p>
      )}
      <h3>Next fires</h3>
      {next.length === 0 ? (
        <p class="muted">{isPaused ? "None while it is paused." : "None any more."}</p>
      ) : (
        <ol class="next">
          {next.map((each) => (
            <li key={each}>
              {stamp(each)} <span class="muted">{ago(each)}</span>
            </li>
          ))}
        </ol>
      )}
      <h3>What became of them</h3>
      <Answer asked={fires} what="Reading the history">
        {(found) =>
          found.length === 0 ? (
            <p class="muted">It has not fired yet.</p>
          ) : (
            <Rows
              label="Fires"
              class="fires"
              items={found}
              height={36}
              keys={false}
              idOf={(fire) => `${fire.scheduled_at_us}/${fire.ended_at_us}`}
              onEnd={fires.more}
              row={(fire) => (
                <div class="fire">
                  <Status status={fire.outcome} />
                  <span title={stamp(fire.scheduled_at_us)}>
                    {stamp(fire.scheduled_at_us)}
                    {fire.count > 1 && ` and ${fire.count - 1} more`}
                  </span>
                  <span class="number">{fire.duration_us ? duration(fire.duration_us) : ""}</span>
                  <span class="cut muted">{fire.reason || (fire.manual ? "by hand" : "")}</span>
                  {fire.run_id && <a href={href(["runs", fire.run_id])}>run</a>}
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
          <p>It never runs again. What became of its fires stays.</p>
        </Confirm>
      )}
    </section>
  );
}

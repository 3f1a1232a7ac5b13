// One span or message in full.
import { at } from "../../base/api";
import { useOnce } from "../../base/cache";
import { count, duration, exact, money, stamp } from "../../base/format";
import { href } from "../../base/route";
import type { RecordContent, RunLine, RunRecord } from "../../base/shapes";
import { Copy, Figure, Status } from "../../ui/bits";
import { Empty, Failure, Loading } from "../../ui/states";
import { isProgram, Payload } from "./conversation";
import { title, type Trace } from "./trace";

const LINKS = new Set(["checkpoint", "snapshot", "memory", "thread"]);

export function Details({ trace, id, run }: { trace: Trace; id: string | null; run: RunLine }) {
  void trace.version.value;
  const record = id === null ? undefined : trace.find(id);
  const asked = useOnce<RecordContent>(
    id === null ? null : at(["runs", trace.run, "spans", id], { readable: true }),
    record?.is_open ? record : null,
  );
  if (id === null) return <Empty title="Choose an event">Click a bar or a message, or use j and k.</Empty>;
  if (asked.problem) return <Failure problem={asked.problem} retry={asked.retry} />;
  if (!asked.data) return <Loading what="Loading event" />;
  return <Whole run={run} record={record ?? asked.data.record} content={asked.data} />;
}

function Whole({ run, record, content }: { run: RunLine; record: RunRecord; content: RecordContent }) {
  const { error, input_size: _, ...rest } = record.data as {
    error?: { type?: string; message?: string; traceback?: string };
    input_size?: number;
  };
  const usage = Object.entries(record.usage ?? {}).filter(([, value]) => value);
  const links = Object.entries(rest).filter(([name, value]) => LINKS.has(name) && typeof value === "string");
  return (
    <div class="details">
      <h2>
        {title(record)} <span class="muted">{record.kind === "span" ? record.type : record.kind}</span>
      </h2>
      <dl class="figures small">
        {record.kind === "span" && <Figure label="status" value={<Status status={record.is_open ? (run.status === "running" ? "running" : "unfinished") : record.status} />} />}
        <Figure label="started" value={stamp(record.started_at_us)} />
        {record.kind === "span" && <Figure label="duration" value={record.is_open ? "…" : duration(record.duration_us)} />}
        {record.agent && <Figure label="agent" value={record.agent} />}
        {record.model && <Figure label="model" value={record.model} />}
        {record.cost !== null && record.currency && (
          <Figure label="cost" value={money({ amount: record.cost, currency: record.currency })} />
        )}
        {usage.map(([name, value]) => (
          <Figure key={name} label={`${name.replaceAll("_", " ")} tokens`} value={<span title={exact(value)}>{count(value)}</span>} />
        ))}
      </dl>
      {error && (
        <section class="trouble">
          <h3>{error.type ?? "Error"}</h3>
          <p>{error.message}</p>
          {error.traceback && <pre tabIndex={0}>{error.traceback}</pre>}
        </section>
      )}
      {content.input !== null && content.input !== undefined && (
        <section>
          <h3>Input</h3>
          <div class="box">
            <Payload value={content.input} messages={content.readable_input} isProse={!isProgram(record)} />
          </div>
        </section>
      )}
      {content.output !== null && content.output !== undefined && (
        <section>
          <h3>{record.kind === "message" ? "Content" : "Output"}</h3>
          <div class="box">
            <Payload value={content.output} messages={content.readable_output} isProse={!isProgram(record)} />
          </div>
        </section>
      )}
      {links.length > 0 && (
        <section>
          <h3>Links</h3>
          {links.map(([name, value]) => (
            <p key={name}>
              {name}: <a href={target(name, value as string, run)}>{value as string}</a>
            </p>
          ))}
        </section>
      )}
      {Object.keys(rest).length > 0 && (
        <section>
          <h3>Attributes</h3>
          <div class="box">
            <Payload value={rest} />
          </div>
        </section>
      )}
      <p class="buttons tight">
        <Copy text={record.id} label="Copy id" />
        <Copy text={new URL(href(["runs", run.id], { span: record.id, tab: "details" }), location.href).href} label="Copy link" />
      </p>
    </div>
  );
}

function target(name: string, value: string, run: RunLine): string {
  if (name === "snapshot") return href(["workspace", value]);
  if (name === "memory") return href(["memory", value]);
  if (name === "thread" || run.thread === null) return href(["threads", value], { namespace: run.namespace });
  return href(["threads", run.thread], { at: value, namespace: run.namespace });
}

// Messages, tool calls with input and output, and errors, in order.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";

import { at } from "../../base/api";
import { useOnce } from "../../base/cache";
import { count, duration, money } from "../../base/format";
import { tokensOf, type ReadMessage, type RecordContent, type RunRecord } from "../../base/shapes";
import { Copy, Status } from "../../ui/bits";
import { Value } from "../../ui/json";
import { Messages, Output, Parts, Prose, Raw } from "../../ui/message";
import { Rows } from "../../ui/rows";
import { Empty } from "../../ui/states";
import { title, type Trace } from "./trace";

const CALLS = new Set(["tool", "file", "retrieval", "reasoning"]);

interface Props {
  trace: Trace;
  until: number | null;
  selected: string | null;
  onSelect: (record: RunRecord) => void;
  isRunning: boolean;
}

export function Conversation({ trace, until, selected, onSelect, isRunning }: Props) {
  const version = trace.version.value;
  const all = useMemo(() => trace.records.filter(isShown), [version]);
  const shown = useMemo(
    () => (until === null ? all : all.filter((each) => each.started_at_us <= until)),
    [all, until],
  );
  const place = useMemo(() => {
    const exact = shown.findIndex((each) => each.id === selected);
    if (exact >= 0 || selected === null) return exact;
    const chosen = trace.find(selected);
    return chosen ? shown.findIndex((each) => each.started_at_us >= chosen.started_at_us) : -1;
  }, [shown, selected]);
  if (shown.length === 0) {
    return (
      <Empty title={until === null ? "No messages" : "No messages yet"}>
        {until === null
          ? "This run has no messages or tool calls. The waterfall shows its spans."
          : "Move the slider forward."}
      </Empty>
    );
  }
  return (
    <Rows
      class="conversation"
      label="Conversation"
      items={shown}
      height={92}
      measured
      keys={false}
      tail={isRunning && until === null && selected === null}
      idOf={(each) => each.id}
      selected={place}
      row={(each, _, isSelected) => (
        <Turn
          run={trace.run}
          record={each}
          until={until}
          isSelected={isSelected && each.id === selected}
          isRunning={isRunning}
          onSelect={onSelect}
        />
      )}
    />
  );
}

function isShown(record: RunRecord): boolean {
  if (record.kind === "message") return true;
  if (record.kind !== "span") return false;
  return CALLS.has(record.type) || record.status === "error" || (record.type === "llm" && record.has_output);
}

function Turn({
  run,
  record,
  until,
  isSelected,
  isRunning,
  onSelect,
}: {
  run: string;
  record: RunRecord;
  until: number | null;
  isSelected: boolean;
  isRunning: boolean;
  onSelect: (record: RunRecord) => void;
}) {
  const content = useOnce<RecordContent>(at(["runs", run, "spans", record.id], { readable: true }), record.is_open ? record : null);
  const isMessage = record.kind === "message";
  const isOver = !record.is_open && (until === null || record.started_at_us + (record.duration_us ?? 0) <= until);
  const failure = record.data["error"] as { type?: string; message?: string } | undefined;
  const tokens = tokensOf(record.usage);
  const kind = isMessage ? (record.role ?? "message") : record.type;
  return (
    <article class={`turn ${kind} ${isMessage ? "message" : "call"}${isSelected ? " chosen" : ""}`}>
      <header>
        <h2>
          <button type="button" class="turn-title" onClick={() => onSelect(record)}>
            <i class={`dot ${record.status === "error" ? "error" : isMessage ? "mark" : record.type}`} aria-hidden="true" />
            {title(record)}
          </button>
        </h2>
        {record.agent && record.agent !== record.name && <span class="muted">{record.agent}</span>}
        <span class="turn-facts muted">
          {record.model && <span>{record.model}</span>}
          {tokens > 0 && <span>{count(tokens)} tokens</span>}
          {record.cost !== null && record.currency && <span>{money({ amount: record.cost, currency: record.currency })}</span>}
          {!isMessage && isOver && <span>{duration(record.duration_us)}</span>}
          {!isMessage && <Status status={isOver ? record.status : isRunning || until !== null ? "running" : "unfinished"} />}
        </span>
      </header>
      <div class="turn-body">
        {content.problem && <p class="trouble">{content.problem.message}</p>}
        {!content.data && !content.problem && <p class="muted">…</p>}
        {content.data && isMessage && (
          <Payload value={content.data.output}>
            {(content.data.readable_output ?? []).map((each, index) => (
              <Parts key={index} parts={each.parts} role={kind} />
            ))}
          </Payload>
        )}
        {content.data && !isMessage && (
          <>
            {content.data.input !== null && content.data.input !== undefined && (
              <div class="in">
                <span class="way">in</span>
                <div>
                  <Payload value={content.data.input} messages={content.data.readable_input} isContext isProse={!isProgram(record)} />
                </div>
              </div>
            )}
            {isOver && content.data.output !== null && content.data.output !== undefined && (
              <div class="out">
                <span class="way">out</span>
                <div>
                  <Payload value={content.data.output} messages={content.data.readable_output} isProse={!isProgram(record)} />
                </div>
              </div>
            )}
          </>
        )}
        {failure && isOver && (
          <p class="trouble">
            <strong>{failure.type ?? "Error"}</strong> {failure.message}
          </p>
        )}
      </div>
    </article>
  );
}

/** Whether what goes in and out is a program's, and not words. */
export function isProgram(record: RunRecord): boolean {
  return record.kind === "span" && (record.type === "tool" || record.type === "file");
}

/** An input or output: messages as such, text as Markdown or as a program prints it, anything else as a tree. */
export function Payload({
  value,
  messages = null,
  isContext = false,
  isProse = false,
  children,
}: {
  value: unknown;
  messages?: readonly ReadMessage[] | null;
  /** Whether the messages are a conversation of which only the end is new. */
  isContext?: boolean;
  isProse?: boolean;
  /** Shown instead, with the buttons of the value. */
  children?: ComponentChildren;
}) {
  const [isRaw, setRaw] = useState(false);
  const isText = typeof value === "string";
  return (
    <div class="payload">
      <span class="payload-tools">
        <Copy text={isText ? value : JSON.stringify(value, null, 2)} />
        {!isText && (
          <button type="button" class="quiet" aria-pressed={isRaw} onClick={() => setRaw(!isRaw)}>
            JSON
          </button>
        )}
      </span>
      {isRaw ? (
        <Raw value={value} />
      ) : children ? (
        children
      ) : messages ? (
        <Messages messages={messages} isFolded={isContext} />
      ) : isText ? (
        isProse ? <Prose text={value} /> : <Output text={value} />
      ) : (
        <Value value={value} search />
      )}
    </div>
  );
}

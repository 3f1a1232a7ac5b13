// Nested spans over time: zoom with Ctrl and the wheel, pan by dragging, collapse spans.
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";

import { duration, exact, plural } from "../../base/format";
import { useKeys } from "../../base/keys";
import type { RunRecord } from "../../base/shapes";
import { Name } from "../../ui/bits";
import { Rows } from "../../ui/rows";
import { Overview } from "./overview";
import { title, type Trace, type TraceRow } from "./trace";

interface Props {
  trace: Trace;
  now: number;
  /** Show only spans that had started by then; null for all. */
  until: number | null;
  selected: string | null;
  onSelect: (record: RunRecord) => void;
}

const NARROWEST_US = 20;

export function Waterfall({ trace, now, until, selected, onSelect }: Props) {
  const collapsed = useSignal<ReadonlySet<string>>(new Set());
  const zoomed = useSignal<[number, number] | null>(null);
  const lanes = useRef<HTMLDivElement>(null);
  const version = trace.version.value;
  const start = trace.start;
  const end = useMemo(() => Math.max(trace.end(now), start + 1), [version, now]);
  const [from, to] = zoomed.value ?? [start, end];
  const all = useMemo(() => trace.rows(collapsed.value), [version, collapsed.value]);
  const rows = useMemo(
    () => (until === null ? all : all.filter((row) => row.record.started_at_us <= until)),
    [all, until],
  );
  const place = useMemo(
    () => (selected === null ? -1 : rows.findIndex((row) => row.record.id === selected)),
    [rows, selected],
  );

  const zoom = (factor: number, around = (from + to) / 2) => {
    const width = Math.max(NARROWEST_US, Math.min(end - start, (to - from) * factor));
    const left = Math.max(start, Math.min(end - width, around - ((around - from) / (to - from)) * width));
    zoomed.value = width >= end - start ? null : [left, left + width];
  };
  const pan = (byUs: number) => {
    const width = to - from;
    if (width >= end - start) return;
    const left = Math.max(start, Math.min(end - width, from + byUs));
    zoomed.value = [left, left + width];
  };
  const fit = (record: RunRecord) => {
    const width = Math.max(record.duration_us ?? (record.is_open ? now - record.started_at_us : 0), NARROWEST_US);
    zoomed.value = [record.started_at_us - width * 0.05, record.started_at_us + width * 1.05];
  };
  const toggle = (id: string, close: boolean) => {
    const next = new Set(collapsed.value);
    if (close) next.add(id);
    else next.delete(id);
    collapsed.value = next;
  };
  const here = rows[place];
  useKeys({
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    "0": () => {
      zoomed.value = null;
    },
    z: () => here && fit(here.record),
    h: () => pan(-(to - from) / 4),
    l: () => pan((to - from) / 4),
    ArrowLeft: () => here && toggle(here.record.id, true),
    ArrowRight: () => here && toggle(here.record.id, false),
    C: () => {
      collapsed.value = new Set(all.filter((row) => row.hasChildren && row.depth > 0).map((row) => row.record.id));
    },
    E: () => {
      collapsed.value = new Set();
    },
  });

  const held = useRef({ zoom, pan, from, to });
  held.current = { zoom, pan, from, to };
  useLayoutEffect(() => {
    const element = lanes.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      const track = element.querySelector<HTMLElement>(".track");
      if (!track) return;
      const box = track.getBoundingClientRect();
      const { from: left, to: right } = held.current;
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        held.current.zoom(event.deltaY > 0 ? 1.25 : 0.8, left + ((event.clientX - box.left) / box.width) * (right - left));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        held.current.pan(((event.deltaX || event.deltaY) / box.width) * (right - left));
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  const drag = (event: PointerEvent) => {
    const track = lanes.current?.querySelector<HTMLElement>(".track");
    if (!track || event.button !== 0 || !(event.target as HTMLElement).closest(".track")) return;
    const width = track.getBoundingClientRect().width;
    let x = event.clientX;
    const move = (next: PointerEvent) => {
      held.current.pan(((x - next.clientX) / width) * (held.current.to - held.current.from));
      x = next.clientX;
    };
    const done = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", done);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", done);
  };

  return (
    <section class="waterfall" aria-label="Waterfall">
      <div class="waterfall-tools">
        <span class="muted small">
          {rows.length === trace.records.length ? plural(rows.length, "event") : `${exact(rows.length)} of ${plural(trace.records.length, "event")}`}
          {trace.complete.value || trace.failed.value ? "" : ", loading …"}
        </span>
        <span class="buttons tight">
          <button type="button" class="quiet" onClick={() => zoom(2)} aria-label="Zoom out">
            −
          </button>
          <button type="button" class="quiet" onClick={() => zoom(0.5)} aria-label="Zoom in">
            +
          </button>
          <button type="button" class="quiet" disabled={zoomed.value === null} onClick={() => (zoomed.value = null)}>
            Whole run
          </button>
        </span>
      </div>
      <Overview
        records={trace.records}
        version={version}
        start={start}
        end={end}
        from={from}
        to={to}
        until={until}
        onZoom={(range) => (zoomed.value = range)}
      />
      <Axis from={from} to={to} start={start} />
      <div class="lanes" ref={lanes} onPointerDown={drag}>
        <Rows
          label="Spans"
          items={rows}
          height={26}
          idOf={(row) => row.record.id}
          selected={place}
          onSelect={(index) => onSelect(rows[index]!.record)}
          row={(row) => (
            <Lane
              row={row}
              from={from}
              to={to}
              now={now}
              until={until}
              onSelect={onSelect}
              onToggle={() => toggle(row.record.id, !row.isCollapsed)}
              onFit={() => fit(row.record)}
            />
          )}
        />
      </div>
    </section>
  );
}

function Lane({
  row,
  from,
  to,
  now,
  until,
  onSelect,
  onToggle,
  onFit,
}: {
  row: TraceRow;
  from: number;
  to: number;
  now: number;
  until: number | null;
  onSelect: (record: RunRecord) => void;
  onToggle: () => void;
  onFit: () => void;
}) {
  const { record } = row;
  const began = record.started_at_us;
  const full = record.is_open ? now : began + (record.duration_us ?? 0);
  const over = until === null ? full : Math.min(full, until);
  const isGoingOn = record.is_open || over < full;
  const width = to - from;
  const left = ((began - from) / width) * 100;
  const wide = ((over - began) / width) * 100;
  const isMark = record.kind !== "span";
  const shown = left < 101 && left + wide > -1;
  const kind = record.status === "error" ? "error" : isMark ? "mark" : record.type;
  return (
    <div class={`lane ${kind}`} onDblClick={onFit}>
      <span class="lane-name" style={{ paddingLeft: `${Math.min(row.depth, 14) * 13 + 4}px` }}>
        {row.hasChildren ? (
          <button
            type="button"
            class="twist"
            aria-expanded={!row.isCollapsed}
            aria-label={`${row.isCollapsed ? "Expand" : "Collapse"} ${title(record)}`}
            onClick={onToggle}
          >
            <span class="arrow" aria-hidden="true" />
          </button>
        ) : (
          <span class="twist" />
        )}
        <button type="button" class="lane-title" onClick={() => onSelect(record)}>
          <i class={`dot ${kind}`} aria-hidden="true" />
          <span class="cut" title={title(record)}>
            <Name text={title(record)} />
          </span>
        </button>
      </span>
      <span class="lane-time">{isMark ? "" : isGoingOn ? "…" : duration(record.duration_us)}</span>
      <span class="track" onClick={() => onSelect(record)}>
        {shown && (
          <i
            class={`bar ${kind}${isGoingOn ? " open" : ""}`}
            style={{
              left: `${Math.max(-1, left)}%`,
              width: isMark ? undefined : `${Math.min(102, wide + Math.min(0, left + 1))}%`,
            }}
          />
        )}
      </span>
    </div>
  );
}

function Axis({ from, to, start }: { from: number; to: number; start: number }) {
  const step = nice((to - from) / 5);
  const ticks = [];
  for (let tick = Math.ceil((from - start) / step) * step; tick <= to - start; tick += step) ticks.push(tick);
  return (
    <div class="axis" aria-hidden="true">
      <span class="axis-track">
        {ticks.map((tick) => (
          <span key={tick} style={{ left: `${((tick + start - from) / (to - from)) * 100}%` }}>
            {tick === 0 ? "0" : duration(tick)}
          </span>
        ))}
      </span>
    </div>
  );
}

function nice(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  for (const factor of [1, 2, 5, 10]) if (value <= factor * power) return factor * power;
  return value;
}

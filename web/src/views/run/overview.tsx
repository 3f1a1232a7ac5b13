// A strip of the whole run: its events, and the range shown below. Drag to select a range.
import { useEffect, useRef } from "preact/hooks";

import type { RunRecord } from "../../base/shapes";
import { colours, type Palette } from "../../ui/colours";

interface Props {
  records: readonly RunRecord[];
  version: number;
  start: number;
  end: number;
  from: number;
  to: number;
  until: number | null;
  onZoom: (range: [number, number] | null) => void;
}

const TALL = 34;
const FEW = 400;

export function Overview({ records, version, start, end, from, to, until, onZoom }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = colours.value;
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const wide = element.clientWidth;
    const scale = devicePixelRatio || 1;
    element.width = wide * scale;
    element.height = TALL * scale;
    context.scale(scale, scale);
    if (records.length <= FEW) drawEach(context, records, { start, end, wide, theme });
    else drawDensity(context, records, { start, end, wide, theme });
  }, [version, start, end, theme]);

  const choose = (event: PointerEvent) => {
    const element = event.currentTarget as HTMLElement;
    const box = element.getBoundingClientRect();
    const timeAt = (x: number) => start + Math.max(0, Math.min(1, (x - box.left) / box.width)) * (end - start);
    const anchor = timeAt(event.clientX);
    const move = (next: PointerEvent) => {
      const other = timeAt(next.clientX);
      if (Math.abs(other - anchor) > (end - start) / 200) onZoom([Math.min(anchor, other), Math.max(anchor, other)]);
    };
    const done = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", done);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", done);
  };
  const percent = (time: number) => `${Math.max(0, Math.min(100, ((time - start) / (end - start)) * 100))}%`;
  return (
    <div class="overview" onPointerDown={choose} onDblClick={() => onZoom(null)} aria-hidden="true">
      <canvas ref={canvas} />
      {(from > start || to < end) && (
        <>
          <i class="outside" style={{ left: 0, width: percent(from) }} />
          <i class="outside" style={{ left: percent(to), right: 0 }} />
        </>
      )}
      {until !== null && <i class="needle" style={{ left: percent(until) }} />}
    </div>
  );
}

interface Strip {
  start: number;
  end: number;
  wide: number;
  theme: Palette;
}

/** Draw few events: one line each, in the order of the waterfall. */
function drawEach(context: CanvasRenderingContext2D, records: readonly RunRecord[], { start, end, wide, theme }: Strip): void {
  const tones: Record<string, string> = {
    agent: theme.bark,
    llm: theme.moss,
    tool: theme.lichen,
    retrieval: theme.amber,
    reasoning: theme.plum,
  };
  const step = Math.min(4, (TALL - 6) / Math.max(1, records.length));
  records.forEach((each, index) => {
    const left = ((each.started_at_us - start) / (end - start)) * wide;
    const width = Math.max(2, ((each.duration_us ?? 0) / (end - start)) * wide);
    context.fillStyle = each.status === "error" ? theme.ember : each.kind === "span" ? (tones[each.type] ?? theme.muted) : theme.ink;
    context.fillRect(Math.min(left, wide - 2), 3 + index * step, width, Math.max(1, step - 1));
  });
}

/** Draw many events: their density over time. */
function drawDensity(context: CanvasRenderingContext2D, records: readonly RunRecord[], { start, end, wide, theme }: Strip): void {
  const busy = new Float64Array(wide + 1);
  const bad = new Uint8Array(wide + 1);
  const place = (time: number) => Math.max(0, Math.min(wide, Math.floor(((time - start) / (end - start)) * wide)));
  for (const each of records) {
    const left = place(each.started_at_us);
    const right = place(each.started_at_us + (each.duration_us ?? 0));
    const share = 1 / (right - left + 1);
    for (let x = left; x <= right; x += 1) busy[x]! += share;
    if (each.status === "error") bad[right] = 1;
  }
  const most = Math.log1p(busy.reduce((one, other) => Math.max(one, other), 0));
  for (let x = 0; x <= wide; x += 1) {
    if (!busy[x]) continue;
    const tall = Math.max(2, (Math.log1p(busy[x]!) / most) * (TALL - 6));
    context.fillStyle = bad[x] ? theme.ember : theme.bark;
    context.globalAlpha = bad[x] ? 1 : 0.55;
    context.fillRect(x, TALL - tall, 1, tall);
  }
}

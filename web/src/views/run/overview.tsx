// The whole run in one strip: where the events are, and which part is shown below. Drag to choose a part.
import { useEffect, useRef } from "preact/hooks";

import type { RunRecord } from "../../base/shapes";
import { colours } from "../../ui/colours";

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
    const busy = new Float64Array(wide + 1);
    const bad = new Uint8Array(wide + 1);
    const width = end - start;
    for (const each of records) {
      const left = Math.floor(((each.started_at_us - start) / width) * wide);
      const right = Math.floor(((each.started_at_us + (each.duration_us ?? 0) - start) / width) * wide);
      const share = 1 / (right - left + 1);
      for (let x = Math.max(0, left); x <= Math.min(wide, right); x += 1) busy[x]! += share;
      if (each.status === "error") bad[Math.max(0, Math.min(wide, right))] = 1;
    }
    const most = Math.log1p(Math.max(...busy));
    for (let x = 0; x <= wide; x += 1) {
      if (!busy[x]) continue;
      const tall = Math.max(2, (Math.log1p(busy[x]!) / most) * (TALL - 6));
      context.fillStyle = bad[x] ? theme.ember : theme.bark;
      context.globalAlpha = bad[x] ? 1 : 0.55;
      context.fillRect(x, TALL - tall, 1, tall);
    }
    context.globalAlpha = 1;
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

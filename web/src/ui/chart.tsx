// A bar chart by day, drawn by uPlot.
import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";

import { colours, type Palette } from "./colours";
import { loadPlot } from "./plot";

interface Props {
  /** ISO dates, in order. */
  days: readonly string[];
  series: readonly { label: string; values: readonly number[] }[];
  format: (value: number) => string;
  label: string;
  height?: number;
}

const DAY = 86_400;

export function DayChart({ days, series, format, label, height = 190 }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const theme = colours.value;
  useEffect(() => {
    const element = box.current;
    if (!element || days.length === 0) return;
    let chart: uPlot | null = null;
    let isGone = false;
    void loadPlot().then((plot) => {
      if (!isGone) chart = drawn(plot, element, { days, series, format, height, theme });
    });
    const watch = new ResizeObserver(() => chart?.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      isGone = true;
      watch.disconnect();
      chart?.destroy();
    };
  }, [days, series, theme, height]);
  return <div class="chart" ref={box} role="img" aria-label={label} style={{ minHeight: `${height + 24}px` }} />;
}

type Drawn = Pick<Props, "days" | "series" | "format"> & { height: number; theme: Palette };

function drawn(plot: typeof uPlot, element: HTMLElement, { days, series, format, height, theme }: Drawn): uPlot {
  const tones = [theme.bark, theme.lichen, theme.moss, theme.amber, theme.plum];
  const times = days.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const last = times.at(-1)! + DAY;
  const axis = {
    stroke: theme.muted,
    grid: { stroke: theme.line, width: 1 },
    ticks: { show: false },
    font: "11px Inter Variable, sans-serif",
  };
  return new plot(
    {
      width: element.clientWidth,
      height,
      padding: [10, 26, 0, 0],
      cursor: { y: false, points: { show: false } },
      tzDate: (seconds) => plot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: {
        x: { range: [Math.min(times[0]! - DAY, last - 14 * DAY), last] },
        y: { range: (_, __, most) => [0, most * 1.1 || 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70, values: (_, marks) => marks.map((mark) => dayOf(mark)) },
        { ...axis, size: 66, values: (_, marks) => marks.map(format) },
      ],
      series: [
        { label: "day", value: (_, seconds) => (seconds === null ? "–" : dayOf(seconds)) },
        ...series.map((each, index) => ({
          label: each.label,
          stroke: tones[index % tones.length]!,
          fill: tones[index % tones.length]!,
          paths: plot.paths.bars!({ size: [0.62, 26], radius: 0.15, align: 0 }),
          points: { show: false },
          value: (_: uPlot, value: number | null) => (value === null ? "–" : format(value)),
        })),
      ],
    },
    [times, ...series.map((each) => [...each.values])],
    element,
  );
}

function dayOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(5, 10);
}

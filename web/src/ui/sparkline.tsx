// A sparkline of bars. Outliers are cut off, and drawn with a gap.
import { outlierCap } from "../base/format";

export function Sparkline({
  values,
  label,
  width = 160,
  height = 30,
  tone = "bark",
}: {
  values: readonly (number | null)[];
  label: string;
  width?: number;
  height?: number;
  tone?: "bark" | "moss" | "lichen";
}) {
  const most = outlierCap(values.map((value) => value ?? 0));
  const step = values.length ? width / values.length : width;
  return (
    <svg class={`sparkline ${tone}`} viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={label}>
      <line x1="0" y1={height - 0.5} x2={width} y2={height - 0.5} />
      {values.map((value, index) => {
        const tall = value ? Math.max(1, Math.min(1, value / most) * (height - 3)) : 0;
        return (
          <rect
            key={index}
            class={value !== null && value > most ? "over" : undefined}
            x={index * step}
            y={height - 1 - tall}
            width={Math.max(0.6, step - Math.min(1, step * 0.25))}
            height={tall}
          />
        );
      })}
    </svg>
  );
}

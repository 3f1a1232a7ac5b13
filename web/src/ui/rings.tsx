// The logo.

interface Props {
  count?: number;
  faint?: boolean;
  growing?: boolean;
  broken?: boolean;
  size?: number;
}

export function Rings({ count = 3, faint = false, growing = false, broken = false, size = 72 }: Props) {
  const kind = ["rings", faint && "faint", growing && "growing", broken && "broken"].filter(Boolean).join(" ");
  const rings = [];
  for (let index = 0; index < count; index += 1) {
    const radius = 5 + ((index + 1) * 25) / count;
    rings.push(
      <path
        key={index}
        d={wobble(radius, index)}
        style={growing ? { animationDelay: `${index * 160}ms` } : {}}
        stroke-dasharray={broken && index === count - 1 ? "70 14 30 22" : undefined}
      />,
    );
  }
  return (
    <svg class={kind} viewBox="0 0 64 64" width={size} height={size} aria-hidden="true">
      {rings}
      <circle cx="32" cy="32" r="2" />
    </svg>
  );
}

/** A slightly irregular circle. */
function wobble(radius: number, seed: number): string {
  const points: [number, number][] = [];
  const steps = 10;
  for (let index = 0; index < steps; index += 1) {
    const angle = (index / steps) * 2 * Math.PI;
    const off = 1 + 0.045 * Math.sin(angle * 2 + seed * 1.3) + 0.025 * Math.cos(angle * 3 - seed);
    points.push([32 + Math.cos(angle) * radius * off, 32 + Math.sin(angle) * radius * off]);
  }
  const middle = (one: [number, number], other: [number, number]) =>
    `${((one[0] + other[0]) / 2).toFixed(1)} ${((one[1] + other[1]) / 2).toFixed(1)}`;
  let path = `M${middle(points[steps - 1]!, points[0]!)}`;
  points.forEach((point, index) => {
    path += `Q${point[0].toFixed(1)} ${point[1].toFixed(1)} ${middle(point, points[(index + 1) % steps]!)}`;
  });
  return `${path}Z`;
}

// The diagram of a thread: a ring per checkpoint, oldest in the centre. A fork splits the circle from its checkpoint
// on; checkpoints abandoned by a rewind are dashed.
import { useMemo } from "preact/hooks";

import { plural } from "../../base/format";
import type { Grown, Node } from "./growth";

interface Arc {
  node: Node;
  /** How many messages it added. */
  added: number;
  /** Whether it is the copy with which a fork starts, and draws no ring of its own. */
  isSame: boolean;
  depth: number;
  from: number;
  to: number;
}

interface Props {
  grown: Grown;
  selected: string | null;
  other: string | null;
  onSelect: (node: Node) => void;
}

const SIZE = 460;
const CENTRE = 16;
const MOST_RINGS = 60;
const GAP = 0.09;

export function Section({ grown, selected, other, onSelect }: Props) {
  const { arcs, rings } = useMemo(() => laidOut(grown), [grown]);
  const step = (SIZE / 2 - CENTRE - 16) / Math.max(rings, 5);
  const shown = arcs.filter((arc) => isShown(arc, rings, selected, other));
  const label =
    `${plural(grown.nodes.size, "checkpoint")} of ${plural(grown.lineages.length, "thread")}, as concentric rings; ` +
    "the list below shows the same checkpoints";
  // Few rings need little room.
  const half = rings < 5 ? CENTRE + rings * step + 14 : SIZE / 2;
  const tall = rings < 5 ? { flexBasis: `${1.1 * half}px`, height: `${1.1 * half}px` } : undefined;
  return (
    <svg class="section" style={tall} viewBox={`${-half} ${-half} ${2 * half} ${2 * half}`} role="img" aria-label={label}>
      <path class="wood" d={ring(CENTRE + rings * step + 10, 0, 2 * Math.PI)} />
      <circle class="centre" r={CENTRE / 3} />
      {shown.map((arc) => {
        const radius = CENTRE + (arc.depth + 0.5) * step;
        const { checkpoint } = arc.node;
        const kinds = [
          "ring",
          `branch-${arc.node.branch % 5}`,
          arc.node.isOnLine ? "" : "left",
          checkpoint.id === selected ? "selected" : "",
          checkpoint.id === other ? "other" : "",
        ];
        return (
          <g key={checkpoint.id} class={kinds.join(" ")} data-checkpoint={checkpoint.id} onClick={() => onSelect(arc.node)}>
            <title>{`${checkpoint.thread} · step ${checkpoint.step}${checkpoint.note ? ` · ${checkpoint.note}` : ""}`}</title>
            <path class="reach" d={ring(radius, arc.from, arc.to)} style={{ strokeWidth: `${Math.max(step, 3)}px` }} />
            <path class="line" d={ring(radius, arc.from, arc.to)} style={{ strokeWidth: `${thickness(arc, step)}px` }} />
            {(arc.node.isHead || checkpoint.pending_interrupt) && (
              <circle
                class={checkpoint.pending_interrupt && arc.node.isHead ? "wait" : "head"}
                r={Math.min(5, Math.max(3, step * 0.4))}
                {...point(radius, (arc.from + arc.to) / 2)}
              />
            )}
          </g>
        );
      })}
    </svg>
  );
}

/** Lay out the checkpoints: the ring is the distance from the root, the arc a share of the parent's. */
function laidOut(grown: Grown): { arcs: Arc[]; rings: number } {
  const leaves = new Map<Node, number>();
  const order: Node[] = [];
  const stack = [...grown.roots];
  for (let node = stack.pop(); node; node = stack.pop()) {
    order.push(node);
    stack.push(...node.children);
  }
  for (const node of order.toReversed()) {
    leaves.set(node, Math.max(1, node.children.reduce((sum, child) => sum + (leaves.get(child) ?? 1), 0)));
  }
  const arcs: Arc[] = [];
  let rings = 1;
  const first = grown.roots.reduce((least, node) => Math.min(least, node.checkpoint.step), Infinity);
  const share = (nodes: readonly Node[], from: number, to: number): Arc[] => {
    const whole = nodes.reduce((sum, node) => sum + (leaves.get(node) ?? 1), 0);
    const gap = nodes.length > 1 ? Math.min(GAP, (to - from) / nodes.length / 4) : 0;
    let angle = from;
    return nodes.map((node) => {
      const wide = ((to - from) * (leaves.get(node) ?? 1)) / whole;
      const before = grown.nodes.get(node.checkpoint.parent ?? "")?.checkpoint;
      const arc = {
        node,
        added: Math.max(0, node.checkpoint.message_count - (before?.message_count ?? 0)),
        isSame: before !== undefined && before.step === node.checkpoint.step,
        depth: node.checkpoint.step - first,
        from: angle + gap / 2,
        to: angle + wide - gap / 2,
      };
      angle += wide;
      return arc;
    });
  };
  const waiting = share(grown.roots, -Math.PI / 2, 1.5 * Math.PI);
  for (let arc = waiting.pop(); arc; arc = waiting.pop()) {
    arcs.push(arc);
    rings = Math.max(rings, arc.depth + 1);
    waiting.push(...share(arc.node.children, arc.from, arc.to));
  }
  return { arcs, rings };
}

/** With very many checkpoints only some are drawn, and always heads, forks and the selection. */
function isShown(arc: Arc, rings: number, selected: string | null, other: string | null): boolean {
  const every = Math.ceil(rings / MOST_RINGS);
  const { id } = arc.node.checkpoint;
  // A fork starts with a copy of the checkpoint that it was forked from.
  const isSame = arc.node.children.length > 0 && arc.isSame && id !== selected && id !== other;
  if (isSame) return false;
  return (
    every === 1 ||
    arc.depth % every === 0 ||
    arc.node.children.length !== 1 ||
    arc.node.isHead ||
    id === selected ||
    id === other
  );
}

/** Wider where more messages were added. */
function thickness(arc: Arc, step: number): number {
  const share = 0.22 + 0.24 * Math.min(2, Math.log2(1 + arc.added));
  return Math.max(1, Math.min(step * share, 18));
}

function point(radius: number, angle: number): { cx: string; cy: string } {
  const bent = radius * bend(angle);
  return { cx: (Math.cos(angle) * bent).toFixed(1), cy: (Math.sin(angle) * bent).toFixed(1) };
}

function ring(radius: number, from: number, to: number): string {
  const isWhole = to - from > 2 * Math.PI - 0.001;
  const steps = Math.max(6, Math.ceil(((to - from) / (2 * Math.PI)) * 72));
  let path = "";
  for (let index = 0; index <= steps; index += 1) {
    const { cx, cy } = point(radius, from + ((to - from) * index) / steps);
    path += `${index === 0 ? "M" : "L"}${cx} ${cy}`;
  }
  return isWhole ? `${path}Z` : path;
}

/** A slightly irregular outline. */
function bend(angle: number): number {
  return 1 + 0.022 * Math.sin(2 * angle + 0.6) + 0.014 * Math.cos(3 * angle - 0.4) - 0.02;
}

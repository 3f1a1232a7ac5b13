// The history of a thread and its forks: all checkpoints reachable through forks, as one tree.
import { at, get } from "../../base/api";
import type { Lineage, CheckpointSummary } from "../../base/shapes";

const MOST_THREADS = 24;
const PAGE = 500;

export interface Node {
  checkpoint: CheckpointSummary;
  isOnLine: boolean;
  isHead: boolean;
  /** Index of its thread in the diagram. */
  branch: number;
  children: Node[];
}

export interface Grown {
  lineages: Lineage[];
  nodes: Map<string, Node>;
  roots: Node[];
  /** How many threads are left out of the diagram. */
  left: number;
}

/** Up to where the thread came from, then down through every fork; the thread that was asked for comes first, with as
 * many pages of its past as are wanted. */
export async function grow(thread: string, namespace: string, pages: number, stop: AbortSignal): Promise<Grown> {
  const lineages: Lineage[] = [];
  const seen = new Set<string>();
  const waiting: [string, string][] = [[thread, namespace]];
  let left = 0;
  while (waiting.length > 0) {
    const level = waiting.splice(0).filter(([id, space]) => {
      const name = `${space}\n${id}`;
      if (seen.has(name)) return false;
      if (seen.size >= MOST_THREADS) {
        left += 1;
        return false;
      }
      seen.add(name);
      return true;
    });
    const found = await Promise.all(
      level.map(([id, space]) => lineage(id, space, id === thread && space === namespace ? pages : 1, stop)),
    );
    for (const each of found) {
      lineages.push(each);
      if (each.origin) waiting.push([each.origin.thread, each.origin.namespace]);
      for (const fork of each.forks) waiting.push([fork.thread, fork.namespace]);
    }
  }
  return { ...connected(lineages), lineages, left };
}

async function lineage(id: string, namespace: string, pages: number, stop: AbortSignal): Promise<Lineage> {
  const page = (cursor: string | null) =>
    get<Lineage>(at(["threads", id, "lineage"], { namespace, limit: PAGE, cursor }), stop);
  let whole = await page(null);
  for (let read = 1; read < pages && whole.next_cursor !== null; read += 1) {
    const next = await page(whole.next_cursor);
    whole = {
      ...whole,
      checkpoints: [...whole.checkpoints, ...next.checkpoints],
      line: [...whole.line, ...next.line],
      rewinds: [...whole.rewinds, ...next.rewinds],
      forks: [...whole.forks, ...next.forks],
      next_cursor: next.next_cursor,
    };
  }
  return whole;
}

function connected(lineages: readonly Lineage[]): { nodes: Map<string, Node>; roots: Node[] } {
  const nodes = new Map<string, Node>();
  lineages.forEach((lineage, branch) => {
    const line = new Set(lineage.line);
    for (const checkpoint of lineage.checkpoints) {
      const node: Node = {
        checkpoint,
        isOnLine: line.has(checkpoint.id),
        isHead: checkpoint.id === lineage.thread.head,
        branch,
        children: [],
      };
      nodes.set(checkpoint.id, node);
    }
  });
  const roots: Node[] = [];
  for (const node of nodes.values()) {
    const parent = node.checkpoint.parent === null ? undefined : nodes.get(node.checkpoint.parent);
    if (parent) parent.children.push(node);
    else roots.push(node);
  }
  for (const node of nodes.values()) {
    node.children.sort((one, other) => (one.checkpoint.id < other.checkpoint.id ? -1 : 1));
  }
  return { nodes, roots };
}

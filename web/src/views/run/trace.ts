// The records of a run as a tree over time. Pages arrive in any order and live records late; a finished record
// replaces its earlier version.
import { signal } from "@preact/signals";

import { at, get } from "../../base/api";
import type { RunRecord } from "../../base/shapes";

const PAGE = 5000;

export interface TraceRow {
  record: RunRecord;
  depth: number;
  hasChildren: boolean;
  isCollapsed: boolean;
}

export class Trace {
  /** Incremented with every change, to trigger rendering. */
  readonly version = signal(0);
  readonly complete = signal(false);
  readonly failed = signal<unknown>(null);
  records: RunRecord[] = [];
  private byId = new Map<string, RunRecord>();
  private last: string | null = null;
  private stopped = new AbortController();
  private loading = false;
  private again = false;

  constructor(readonly run: string) {}

  get start(): number {
    return this.records[0]?.started_at_us ?? 0;
  }

  end(now: number): number {
    let latest = this.start;
    for (const each of this.records) {
      const over = each.is_open ? now : each.started_at_us + (each.duration_us ?? 0);
      if (over > latest) latest = over;
    }
    return latest;
  }

  /** The time of the last record. */
  heard(): number {
    return this.records.reduce((latest, each) => Math.max(latest, each.started_at_us + (each.duration_us ?? 0)), this.start);
  }

  find(id: string): RunRecord | undefined {
    return this.byId.get(id);
  }

  /** Fetch all records page by page, showing each page as it arrives. */
  async load(): Promise<void> {
    if (this.loading) {
      this.again = true;
      return;
    }
    this.loading = true;
    try {
      do {
        this.again = false;
        await this.pages();
        await this.reopen();
      } while (this.again && !this.stopped.signal.aborted);
      this.complete.value = true;
      this.failed.value = null;
    } catch (error) {
      if (!this.stopped.signal.aborted) this.failed.value = error;
    } finally {
      this.loading = false;
    }
  }

  stop(): void {
    this.stopped.abort();
  }

  private async pages(): Promise<void> {
    // The first page is small, so that it shows quickly.
    let limit = this.records.length === 0 ? 500 : PAGE;
    for (;;) {
      const url = at(["runs", this.run, "spans"], { limit, cursor: this.last });
      const page = await get<{ records: RunRecord[]; next_cursor: string | null }>(url, this.stopped.signal);
      this.merge(page.records);
      if (page.next_cursor === null) return;
      this.last = page.next_cursor;
      limit = PAGE;
    }
  }

  /** Fetch open spans again: a span ends in the record where it started, which was read already. */
  private async reopen(): Promise<void> {
    if (!this.complete.value) return;
    const open = this.records.filter((each) => each.is_open);
    const ended = await Promise.all(
      open.map((each) =>
        get<{ record: RunRecord }>(at(["runs", this.run, "spans", each.id]), this.stopped.signal).then(
          (told) => told.record,
          () => each,
        ),
      ),
    );
    this.merge(ended.filter((each) => !each.is_open));
  }

  private merge(records: RunRecord[]): void {
    let changed = false;
    for (const each of records) {
      const known = this.byId.get(each.id);
      if (known && (each.is_open || !known.is_open)) continue;
      this.byId.set(each.id, each);
      changed = true;
      if (known) {
        this.records[this.records.indexOf(known)] = each;
      } else {
        const end = this.records.at(-1);
        if (!end || isBefore(end, each)) this.records.push(each);
        else this.records.splice(this.place(each), 0, each);
      }
    }
    if (changed) this.version.value += 1;
  }

  private place(record: RunRecord): number {
    let low = 0;
    let high = this.records.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBefore(this.records[middle]!, record)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The tree from top to bottom, without the descendants of collapsed spans. */
  rows(collapsed: ReadonlySet<string>): TraceRow[] {
    const below = new Map<string, RunRecord[]>();
    const roots: RunRecord[] = [];
    for (const each of this.records) {
      if (each.parent !== null && each.parent !== each.id && this.byId.has(each.parent)) {
        const siblings = below.get(each.parent);
        if (siblings) siblings.push(each);
        else below.set(each.parent, [each]);
      } else {
        roots.push(each);
      }
    }
    const rows: TraceRow[] = [];
    const stack: [RunRecord, number][] = roots.toReversed().map((each) => [each, 0]);
    for (let top = stack.pop(); top; top = stack.pop()) {
      const [record, depth] = top;
      const children = below.get(record.id);
      const isCollapsed = collapsed.has(record.id);
      rows.push({ record, depth, hasChildren: children !== undefined, isCollapsed });
      if (children && !isCollapsed) {
        for (let index = children.length - 1; index >= 0; index -= 1) stack.push([children[index]!, depth + 1]);
      }
    }
    return rows;
  }
}

function isBefore(one: RunRecord, other: RunRecord): boolean {
  return one.started_at_us < other.started_at_us || (one.started_at_us === other.started_at_us && one.seq < other.seq);
}

/** A short title. */
export function title(record: RunRecord): string {
  if (record.kind === "message") return `${record.role ?? "message"}${record.name ? ` · ${record.name}` : ""}`;
  return record.name ?? record.type;
}

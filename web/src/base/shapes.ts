// Types of the REST API, as far as the dashboard uses it.
import type { Amount } from "./format";

export interface Usage {
  input?: number;
  cache_read?: number;
  cache_write?: number;
  cache_write_1h?: number;
  other?: number;
  output?: number;
  reasoning?: number;
}

export interface Part {
  kind: "text" | "thinking" | "tool_call" | "tool_result" | "image" | "file" | "citation" | "error" | "data";
  text?: string;
  name?: string | null;
  call_id?: string | null;
  value?: unknown;
  url?: string | null;
  media_type?: string | null;
  parts?: Part[];
  is_error?: boolean;
}

/** A message of any format, as the server reads it. */
export interface ReadMessage {
  role: string;
  parts: Part[];
  name?: string | null;
}

export interface RunLine {
  id: string;
  agent: string | null;
  thread: string | null;
  /** Whether the thread was ever saved; a run may name one that was not. */
  has_thread: boolean;
  archived: boolean;
  namespace: string;
  /** The beginning of the question, the answer, and what it failed with. */
  input: string | null;
  output: string | null;
  error: string | null;
  status: string;
  started_at_us: number;
  ended_at_us: number | null;
  duration_us: number | null;
  tokens: number;
  usage: Usage;
  cost: Amount[];
  unpriced_tokens: number;
  events: number;
  errors: number;
  tags: string[];
  meta: Record<string, unknown>;
}

export interface RunRecord {
  id: string;
  seq: number;
  kind: string;
  type: string;
  name: string | null;
  parent: string | null;
  agent: string | null;
  role: string | null;
  status: string | null;
  model: string | null;
  started_at_us: number;
  duration_us: number | null;
  is_open: boolean;
  usage: Usage | null;
  cost: number | null;
  currency: string | null;
  data: Record<string, unknown>;
  has_input: boolean;
  has_output: boolean;
}

export interface RecordContent {
  record: RunRecord;
  input: unknown;
  output: unknown;
  readable_input: ReadMessage[] | null;
  readable_output: ReadMessage[] | null;
}

export interface CostLine {
  key: string | null;
  usage: Usage;
  tokens: number;
  cost: Amount[];
  events: number;
  errors: number;
  unpriced_tokens: number;
  unpriced_events: number;
}

export interface CostTable {
  total: CostLine;
  parts: CostLine[];
}

export function tokensOf(usage: Usage | null | undefined): number {
  if (!usage) return 0;
  return (
    (usage.input ?? 0) +
    (usage.cache_read ?? 0) +
    (usage.cache_write ?? 0) +
    (usage.cache_write_1h ?? 0) +
    (usage.output ?? 0) +
    (usage.other ?? 0)
  );
}

export interface ThreadLine {
  id: string;
  namespace: string;
  head: string;
  step: number;
  created_at: string;
  updated_at: string;
}

/** The beginning of a message on one line. */
export interface Said {
  role: string;
  text: string;
}

export interface ThreadOverview extends ThreadLine {
  message_count: number;
  last_message: Said | null;
  note: string | null;
  is_pending: boolean;
  is_damaged: boolean;
  tokens: number;
  cost: Amount[];
  unpriced_tokens: number;
}

export interface Interrupt {
  id: string;
  payload: unknown;
  /** Of a graph: what decisions are to it. */
  answer?: { values: Record<string, unknown> };
  /** What else the graph waits for. */
  others?: Interrupt[];
}

export interface CheckpointSummary {
  id: string;
  thread: string;
  namespace: string;
  parent: string | null;
  step: number;
  created_at: string;
  note: string | null;
  tags: string[];
  metadata: Record<string, unknown>;
  pending_interrupt: Interrupt | null;
  message_count: number;
  last_message: Said | null;
  snapshot: string | null;
}

/** A summary that stands for messages before a boundary, in the view of a model. */
export interface Compaction {
  id: string;
  source: string;
  text: string;
  since: number;
  upto: number;
  tokens_before: number | null;
  tokens_after: number | null;
  cost: string | null;
  currency: string | null;
}

export interface CheckpointContent {
  checkpoint: CheckpointSummary;
  messages: unknown[];
  readable: ReadMessage[];
  first_message: number;
  compactions: Compaction[];
  state: Record<string, unknown>;
  lists: Record<string, unknown[]>;
}

export interface Fork {
  thread: string;
  namespace: string;
  at: string;
  head: string;
  step: number;
}

export interface Lineage {
  thread: ThreadLine;
  checkpoints: CheckpointSummary[];
  line: string[];
  rewinds: { at: string; before: string | null; to: string }[];
  forks: Fork[];
  origin: CheckpointSummary | null;
  next_cursor: string | null;
}

export interface Entry {
  path: string;
  kind: "file" | "folder" | "link";
  mode: number;
  size: number;
  target: string | null;
  hash: string | null;
}

export interface FileChange {
  path: string;
  change: "added" | "removed" | "changed";
  before: Entry | null;
  after: Entry | null;
  text: string | null;
}

export interface Difference {
  before: string;
  after: string;
  common: number;
  added: [number, ReadMessage][];
  removed: [number, ReadMessage][];
  changed: { index: number; before: ReadMessage; after: ReadMessage }[];
  state: Record<string, unknown>[];
  lists: Record<string, Record<string, unknown>[]>;
  files: FileChange[];
}

export interface SnapshotInfo {
  id: string;
  workspace: string;
  taken_at_us: number;
  files: number;
  size_bytes: number;
  note: string | null;
  tags: string[];
  secrets: FoundSecret[];
}

/** What looks like a key or a password, and where; `hint` is how it begins. */
export interface FoundSecret {
  path: string;
  rule: string;
  line: number;
  hint: string;
}

/** A checkpoint of a sandbox; `hash` is the id of a snapshot. */
export interface SandboxCheckpoint {
  id: string;
  hash: string;
  tag: string;
  timestamp: string;
  size_bytes?: number;
  files?: number;
  agent_type?: string;
  model?: string;
  workspace_mode?: string;
  parent_id?: string;
  comment?: string;
  sandbox_id?: string;
  provider?: string;
  secrets?: FoundSecret[];
}

/** What an agent left in the output folder of its workspace. */
export interface SessionOutput {
  tag: string | null;
  sandbox_id: string | null;
  checkpoint: string | null;
  files: { path: string; size_bytes: number }[];
}

export interface Provenance {
  run?: string;
  step?: number;
  source?: string;
  trust?: "low" | "medium" | "high";
  derived_from?: string[];
}

export interface MemoryDocument {
  id: string;
  content: string;
  metadata: Record<string, unknown> & {
    tags?: string[];
    auto_load?: boolean;
    created_at?: string;
    updated_at?: string;
    expires_at?: string | null;
  };
  version: number;
  provenance: Provenance | null;
}

export interface MemoryVersion {
  id: string;
  version: number;
  operation: "saved" | "deleted";
  document: MemoryDocument | null;
  provenance: Provenance | null;
  changed_at_us: number;
}

export interface Task {
  id: string;
  prompt: string;
  type: "cron" | "interval" | "once";
  value: string;
  tz?: string;
  channel?: string;
  chat_id?: string;
  namespace?: string;
  created_at_us: number;
  last_run_us?: number | null;
  next_run_us?: number | null;
  status?: string;
  runs?: number;
  open_occurrences?: { at_us: number; worker?: string | null; manual?: boolean }[];
}

export interface OccurrenceReport {
  task_id: string;
  outcome: "ok" | "error" | "skipped";
  scheduled_at_us: number;
  last_scheduled_at_us: number;
  count: number;
  reason: string;
  result: unknown;
  attempt: number;
  run_id: string | null;
  ended_at_us: number;
  duration_us: number;
  late_us: number;
  manual: boolean;
}

/** The id in a snapshot's address. */
export function snapshotId(address: string): string {
  return address.replace(/^o:/, "");
}

export interface Effect {
  id: string;
  tool: string;
  arguments: unknown;
  status: "planned" | "started" | "done" | "failed" | "unknown" | "abandoned";
  replay: "safe" | "once" | "ask";
  takes_key: boolean;
  attempt: number;
  planned_at_us: number;
  started_at_us: number | null;
  ended_at_us: number | null;
  call_id: string | null;
  thread_id: string | null;
  namespace: string;
  run_id: string | null;
  agent: string | null;
  owner: string | null;
  result: unknown;
  files: string[];
  file_count: number;
  cost_nanos: Record<string, number>;
  decided_by: string | null;
  note: string | null;
  checkpoint_id: string | null;
}

export interface EffectPage {
  effects: { effect: Effect; key: string }[];
  next_cursor: string | null;
}

// Generated from the server's OpenAPI document by scripts/generate.py. Do not edit.

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** What to do next; ``rollback`` (iterations) and ``clear_summaries`` apply to STEP_BACK. */
export interface Actions {
  type?: "CONTINUE" | "STEP_BACK" | "STOP";
  rollback?: number;
  clear_summaries?: boolean;
}

/** Agents side by side. */
export interface AgentComparison {
  agents: AgentFigures[];
}

/** The numbers of one agent over a period. ``runs`` counts ended runs that this agent started. */
export interface AgentFigures {
  agent: string;
  cost: Cost;
  runs: number;
  failed_runs: number;
  steps: number;
  errors: number;
  latency: Percentiles | null;
}

/** Something that a person should know. ``rule`` names the budget or the rule that raised it. */
export interface Alert {
  id: string;
  ts_us: number;
  level: "critical" | "warning";
  rule: string;
  message: string;
  run?: string | null;
  agent?: string | null;
  thread?: string | null;
  namespace?: string;
  figures?: Record<string, Json>;
  ts: string;
}

/** Alerts, newest first. */
export interface AlertList {
  alerts: Alert[];
  next_cursor: string | null;
}

/** When to raise an alert about a run that has ended. */
export interface AlertRule {
  name: string;
  what: "cost" | "duration" | "failed" | "failures" | "tokens";
  agent?: string | null;
  times?: number;
  share?: number;
  runs?: number;
  at_least?: number;
}

/** The decision about the pending interrupt. */
export interface Answer {
  decision: "approve" | "deny" | "edit";
  interrupt_id?: string | null;
  value?: Json;
  by?: string | null;
  reason?: string | null;
}

/** A question, what it is about, and how far the answer is. */
export interface Approval {
  id: string;
  status: "approved" | "cancelled" | "denied" | "open" | "withdrawn";
  progress: "answered" | "closed" | "open";
  thread_id: string;
  namespace: string;
  waits_in: string;
  checkpoint_id: string;
  asked_at_us: number;
  question: Json;
  text: string | null;
  calls: AskedCall[];
  effect_id: string | null;
  agent: string | null;
  run_id: string | null;
  cost_nanos: Record<string, number>;
  policy: ApprovalPolicy;
  who: string[];
  due_at_us: number | null;
  is_escalated: boolean;
  is_expired: boolean;
  votes: Vote[];
  agreed: string[];
  value: Json;
  answered_at_us: number | null;
  answer_checkpoint_id: string | null;
  asked_at: string;
  due_at: string | null;
  answered_at: string | null;
}

/**
 * An answer. ``revision`` is the number of votes that its author has seen.
 *
 * The name of the caller's key is who answers; ``by`` counts only on a server without keys.
 */
export interface ApprovalAnswer {
  decision: "approve" | "deny" | "edit";
  value?: Json;
  reason?: string | null;
  revision?: number | null;
  by?: string | null;
}

/** What changed in the files since the run began that asks. */
export interface ApprovalChanges {
  files: FileChange[];
}

/** A question, and whether the caller may answer it now. */
export interface ApprovalInfo {
  approval: Approval;
  decided_by: string[];
  reason: string | null;
  arguments: Json;
  revision: number;
  may_answer: boolean;
}

/** Questions. */
export interface ApprovalList {
  approvals: ApprovalInfo[];
  next_cursor: string | null;
}

/**
 * Who may answer a question, and what happens if nobody does.
 *
 * ``who`` are names of people or API keys, with ``*`` and ``?`` as wildcards; empty means anybody. With
 * ``then="escalate"``, those of ``escalate_to`` may answer after the deadline, for ``escalate_seconds`` (by
 * default as long again), and ``at_last`` happens after that. ``quorum`` is how many must agree.
 */
export interface ApprovalPolicy {
  who?: string[];
  seconds?: number | null;
  then?: "approve" | "deny" | "escalate" | "wait";
  escalate_to?: string[];
  escalate_seconds?: number | null;
  at_last?: "approve" | "deny" | "wait";
  quorum?: number;
}

/** A question that a program asks, about a call that it wants to make. */
export interface ApprovalRequest {
  tool: string;
  arguments?: Json;
  question?: string | null;
  thread?: string | null;
  namespace?: string;
  run?: string | null;
  agent?: string | null;
  policy?: ApprovalPolicy | null;
  id?: string | null;
}

/**
 * The policy of all questions about some tools, whatever their asker says.
 *
 * ``tool``, ``agent`` and ``thread`` may have ``*`` and ``?`` as wildcards.
 */
export interface ApprovalRule {
  name: string;
  policy: ApprovalPolicy;
  tool?: string;
  agent?: string;
  thread?: string;
}

/** The rules, by name. */
export interface ApprovalRules {
  rules: ApprovalRule[];
}

/** The archived days of a space, and where its files are. */
export interface Archive {
  url: string | null;
  rows?: number;
  bytes?: number;
  through?: number;
  files?: ArchivedFile[];
}

/** What to archive: everything of the days before ``before``, an age such as ``30d`` or a date. */
export interface ArchiveOrder {
  before: string;
}

/** What archiving moved out of the database. */
export interface Archived {
  events?: number;
  runs?: number;
  files?: number;
  bytes?: number;
  days?: string[];
  through?: number;
}

/** An archived file: its path in the blob store, its day, and what it holds. */
export interface ArchivedFile {
  path: string;
  day: string;
  rows: number;
  bytes: number;
  sha256: string;
}

/** A tool call that waits for an answer. */
export interface AskedCall {
  tool: string;
  arguments?: Json;
  call_id?: string | null;
}

/** A run of a tree, without its cost. */
export interface AttemptLine {
  id: string;
  agent: string | null;
  thread: string | null;
  status: string;
  started_at: string;
}

/** What a check against seals found. Erasures are listed; they are no reason for ``ok`` to be false. */
export interface AuditReport {
  ok: boolean;
  seals: number;
  commits: number;
  erased: number;
  unsealed: number;
  findings?: Finding[];
  problems?: RecordsProblem[];
}

/** The checkpoint to rewind to. */
export interface Back {
  to: string;
}

/** A budget with its usage, where requested; money is in nano-units of its currency. */
export interface BudgetLine {
  budget: SharedBudget;
  key?: string | null;
  used?: Record<string, number>;
  reserved?: Record<string, number>;
  share?: number | null;
  is_used_up?: boolean;
}

/** Budgets by name. */
export interface BudgetList {
  budgets: BudgetLine[];
  unreadable?: Unreadable[];
}

/** Who cancels a run, and why. */
export interface CancelBody {
  by?: string | null;
  reason?: string | null;
}

/** The runs that had not ended: those that wait or whose process is gone are ``cancelled``. */
export interface Cancelled {
  runs: AttemptLine[];
}

/** Where the project lives: a database without its password; ``null`` for the store's first one. */
export interface CellLine {
  url: string | null;
  moving_to?: string | null;
}

/** How much `check` has read so far. */
export interface Checked {
  objects?: number;
  bodies?: number;
  items?: number;
  events?: number;
  refs?: number;
  bytes?: number;
}

/**
 * A checkpoint with its content; ``first_message`` is the index of the first message returned.
 *
 * ``compactions`` are summaries that stand for some of the messages in the view of a model. ``readable`` has
 * each message as a role and parts, whatever its format, if the request asked for it.
 */
export interface CheckpointContent {
  checkpoint: CheckpointSummary;
  messages: Json[];
  readable: ReadMessage[] | null;
  first_message: number;
  compactions: CompactionLine[];
  state: Record<string, Json>;
  lists: Record<string, Json[]>;
}

/**
 * A checkpoint of a sandbox: its files at one time, and where they came from.
 *
 * ``id`` is what `run(from_=)` accepts. ``hash`` is the SHA-256 name of the root tree: equal files have
 * equal hashes, on any machine. ``size_bytes`` is what a restore writes. ``parent_id`` is the checkpoint
 * that the sandbox was at before. ``workspace_path`` is where the workspace was when the checkpoint was
 * taken; ``sandbox_id`` and ``tag`` are those of the session log. ``secrets`` are what looks like keys and
 * passwords in the files, the first 100.
 */
export interface CheckpointInfo {
  id: string;
  hash: string;
  tag: string;
  timestamp: string;
  size_bytes?: number | null;
  agent_type?: string | null;
  model?: string | null;
  workspace_mode?: string | null;
  parent_id?: string | null;
  comment?: string | null;
  files?: number | null;
  workspace_path?: string | null;
  sandbox_id?: string | null;
  provider?: string | null;
  secrets?: FoundSecret[];
}

/** A checkpoint without its content. */
export interface CheckpointSummary {
  id: string;
  thread: string;
  namespace: string;
  parent: string | null;
  step: number;
  created_at: string;
  note: string | null;
  tags: string[];
  metadata: Record<string, Json>;
  pending_interrupt: Json;
  message_count: number;
  last_message: Said | null;
  snapshot: string | null;
}

/** Checkpoints of sandboxes, newest first. */
export interface Checkpoints {
  checkpoints: CheckpointInfo[];
  next_cursor: string | null;
}

/** How much was removed; ``kept`` names shared content and files that had to stay, and why. */
export interface Cleaned {
  transcript_events?: number;
  checkpoints?: number;
  bytes?: number;
  kept?: Record<string, string>;
}

/**
 * What `gc` removed, or would remove in a dry run.
 *
 * ``dropped`` and ``kept`` count the events that retention decided about, by kind. ``event`` is the id of
 * the journal event that lists the dropped ones (for runs there is a separate event, returned only if
 * nothing else was dropped).
 */
export interface Collection {
  dropped: Record<string, number>;
  kept: Record<string, number>;
  swept: Swept;
  dry_run: boolean;
  event?: string | null;
}

/** A compaction: its text stands for the messages from ``keeps`` to ``upto``. */
export interface CompactionLine {
  id: string;
  created_at: string;
  created_at_us: number;
  source: string;
  text: string;
  messages: Json[];
  keeps: number;
  since: number;
  upto: number;
  tokens_before: number | null;
  tokens_after: number | null;
  is_exact: boolean;
  model: string | null;
  usage: Record<string, number>;
  cost: string | null;
  currency: string | null;
}

/** The compactions of a thread, oldest first. */
export interface Compactions {
  compactions: CompactionLine[];
}

/** The original, or one rerun, in figures. Tokens, cost and time are those from ``from_step`` on. */
export interface Compared {
  run: string;
  thread: string | null;
  variant: string;
  repetition: number;
  status: string;
  error: string | null;
  steps: number;
  departure: Departure | null;
  messages: number;
  common_messages: number;
  files: FileDifference[];
  verify: VerifyResult | null;
  usage: Usage;
  tokens: number;
  cost: number | null;
  took_us: number;
  final: string;
  folder?: string | null;
}

/** A step of a run, with as much as is needed to recognise it. */
export interface ComparedStep {
  event: string;
  kind: string;
  name: string | null;
  role: string | null;
  offset_us: number;
  text: string;
}

/** A run and its reruns. */
export interface Comparison {
  run: string;
  group: string;
  from_step: number;
  original: Compared;
  reruns: Compared[];
  variants: VariantSummary[];
}

/** Tokens and money of one group. ``key`` is its agent, model or day; ``None`` for a total. */
export interface Cost {
  key: string | number | null;
  usage: Usage;
  nanos: Record<string, number>;
  events?: number;
  errors?: number;
  unpriced_tokens?: number;
  unpriced_events?: number;
  rates?: ExchangeRate[];
  unconverted?: Record<string, number>;
}

/** The cost of one group; ``key`` is its day, agent, model, kind, run, thread or tag. */
export interface CostLine {
  key: string | null;
  usage: Usage;
  tokens: number;
  cost: Money[];
  events: number;
  errors: number;
  unpriced_tokens: number;
  unpriced_events: number;
  unconverted: Money[];
  rates: (Record<string, Json>)[];
}

/** A total and its parts. */
export interface CostTable {
  total: CostLine;
  parts: CostLine[];
}

/** A new key. ``token`` is shown only once. */
export interface CreatedKey {
  key: KeyLine;
  token: string;
}

/** The first step of the original that a run did not make. */
export interface Departure {
  step: number;
  what: string;
  name: string;
  original: string;
  here: string;
}

/** What happened in a thread since a moment: the last events of its timeline, and changes to files. */
export interface DiffChanges {
  events: Happened[];
  files: FileChange[];
  earlier?: number;
}

/**
 * The changes from ``before`` to ``after``; removed messages have indexes of ``before``, others of
 * ``after``.
 */
export interface Difference {
  before: string;
  after: string;
  common: number;
  added: ([number, Json])[];
  removed: ([number, Json])[];
  changed: MessageChange[];
  state: (Record<string, Json>)[];
  files?: FileChange[];
  lists?: Record<string, (Record<string, Json>)[]>;
}

/** The first step that differs, and in what. A run that ended earlier has no step. */
export interface Divergence {
  index: number;
  what: "content" | "input" | "kind" | "length" | "name" | "role";
  one: ComparedStep | null;
  other: ComparedStep | null;
}

/** A tool call, how far it got, and its outcome. */
export interface Effect {
  id: string;
  tool: string;
  arguments: Json;
  status: "abandoned" | "done" | "failed" | "planned" | "started" | "unknown";
  replay: "ask" | "once" | "safe";
  takes_key: boolean;
  attempt: number;
  planned_at_us: number;
  call_id?: string | null;
  thread_id?: string | null;
  namespace?: string;
  run_id?: string | null;
  agent?: string | null;
  owner?: string | null;
  started_at_us?: number | null;
  ended_at_us?: number | null;
  result?: Json;
  files?: string[];
  file_count?: number;
  cost_nanos?: Record<string, number>;
  decided_by?: string | null;
  note?: string | null;
  checkpoint_id?: string | null;
  planned_at: string;
  started_at?: string | null;
  ended_at?: string | null;
}

/** What became of an unknown effect: it ``happened`` (with a result), ``retry`` it, or ``abandon`` it. */
export interface EffectDecision {
  decision: "abandon" | "happened" | "retry";
  result?: Json;
  by?: string | null;
  note?: string | null;
}

/** An effect, and the idempotency key of its calls. */
export interface EffectInfo {
  effect: Effect;
  key: string;
}

/** Effects, newest first. */
export interface EffectList {
  effects: EffectInfo[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** An acknowledgement without content. */
export interface Empty {
  ok?: boolean;
}

/** The entries of a folder. */
export interface Entries {
  entries: SnapshotEntry[];
}

/** How much of ``into`` one unit of ``currency`` was worth on a day (ISO date). */
export interface ExchangeRate {
  currency: string;
  into: string;
  rate: string;
  date: string;
}

/** A path that differs; ``None`` on the side that lacks it. ``text`` is a unified diff. */
export interface FileChange {
  path: string;
  change: "added" | "changed" | "removed";
  before: SnapshotEntry | null;
  after: SnapshotEntry | null;
  text?: string | null;
}

/** A file that differs from the one that the original left. */
export interface FileDifference {
  path: string;
  change: string;
  text?: string | null;
}

/** The files at a step: their snapshot, and what differs from the step before, with unified diffs. */
export interface Files {
  snapshot: string;
  changes: FileChange[];
  more?: number;
}

/** A difference between the store and a seal. */
export interface Finding {
  kind: "changed" | "dropped" | "erased" | "inserted" | "reordered" | "seal";
  what: string;
  detail: string;
}

/**
 * The receipt of `forget`: what was removed, what was kept and why, and how absence was proven.
 *
 * ``proof="bytes"`` means that the files were wiped, ``"query"`` that no query returns the data any more
 * (the logs and backups of a database server are out of reach). ``event`` is the id of the journal event
 * that records the erasure.
 */
export interface Forgotten {
  scopes: number;
  below: number;
  events: number;
  refs: number;
  lists: number;
  bodies: number;
  texts: number;
  objects: number;
  bytes: number;
  kept: Record<string, string>;
  proof: "bytes" | "query";
  event: string;
  salt: string;
  digest: string;
}

/** Another thread that began at a checkpoint of this one. */
export interface ForkLine {
  thread: string;
  namespace: string;
  at: string;
  head: string;
  step: number;
}

/**
 * What was found of each kind, best first. ``words`` are the words searched for.
 *
 * ``is_partial`` and ``not_indexed`` are about runs; see `treering.runs.search.SearchResult`.
 */
export interface Found {
  threads: ThreadHit[];
  runs: Hit[];
  memory: MemoryHit[];
  words: string[];
  is_partial?: boolean;
  not_indexed?: number;
}

/** A secret in one of several files or records. ``path`` says in which. */
export interface FoundSecret {
  path: string;
  rule: string;
  line: number;
  hint: string;
}

/** The step that was found; ``None`` if no step meets a condition. */
export interface FoundStep {
  step: Step | null;
}

/** The days with new data, oldest first, and the trend of the last ``days_looked_at``. */
export interface Growth {
  days: GrowthDay[];
  total_bytes: number;
  days_looked_at: number;
  bytes_per_day: number;
  in_30_days_bytes: number;
}

/** Data of one UTC day that is still stored. */
export interface GrowthDay {
  date: string;
  bytes: number;
  total_bytes: number;
  events: number;
  runs: number;
}

/** An event of a timeline, in short. */
export interface Happened {
  ts_us: number;
  label: string;
  agent?: string | null;
  ts: string;
}

/** Checkpoints, newest first. */
export interface History {
  checkpoints: CheckpointSummary[];
  next_cursor: string | null;
}

/** A message, an input or an output that contains some of the words. */
export interface Hit {
  run: string;
  span: string | null;
  event: string;
  seq: number;
  ts_us: number;
  kind: string;
  part: "content" | "input" | "output";
  agent: string | null;
  thread: string | null;
  namespace: string;
  name: string | null;
  role: string | null;
  matched: number;
  snippet: string;
  ts: string;
}

/** An error: its class, message, HTTP status, and whether retrying may succeed. */
export interface HttpProblem {
  type: string;
  title: string;
  status: number;
  detail: string;
  retryable?: boolean;
  more?: Record<string, Json>;
}

/** What to keep of each thread, workspace or agent; see `treering.Keep`. */
export interface KeepRule {
  last?: number | null;
  hourly?: number | null;
  daily?: number | null;
  weekly?: number | null;
  monthly?: number | null;
  tagged?: string[];
  within?: string | null;
  max_bytes?: number | null;
}

/** A key without its secret. */
export interface KeyLine {
  id: string;
  project: string;
  scope: "admin" | "read" | "write";
  name: string;
  approves: boolean;
  created_at: string;
}

/** The keys of a project, oldest first. */
export interface KeyList {
  keys: KeyLine[];
}

/** A path of the folder that is not in the snapshot although no pattern excludes it. */
export interface LeftOut {
  path: string;
  reason: string;
}

/** The tree of a thread: its checkpoints (newest first), those that lead to the head, rewinds, forks. */
export interface Lineage {
  thread: ThreadLine;
  checkpoints: CheckpointSummary[];
  line: string[];
  rewinds: RewindLine[];
  forks: ForkLine[];
  origin: CheckpointSummary | null;
  next_cursor: string | null;
}

/** An event of the journal. To resume after it, pass its ``seq``. */
export interface LiveEvent {
  seq: number;
  id: string;
  kind: string;
  ts_us: number;
  committed_at_us: number;
  run?: string | null;
  span?: string | null;
  parent?: string | null;
  thread?: string | null;
  namespace?: string;
  agent?: string | null;
  name?: string | null;
  model?: string | null;
  role?: string | null;
  status?: string | null;
  usage?: Usage | null;
  cost?: string | null;
  currency?: string | null;
  duration_us?: number | null;
  data?: Json;
  body?: string | null;
  ts: string;
  committed_at: string;
}

/** A document that was read, written or deleted during a step, a search, or what was put into a prompt. */
export interface MemoryAccess {
  what: "context" | "delete" | "read" | "search" | "write";
  id: string | null;
  namespace: string;
  at_us: number;
  query?: string | null;
  found?: string[];
  version?: number | null;
  text?: string | null;
  at: string;
}

/** The changes between two versions; ``text`` is a unified diff, empty if the content is the same. */
export interface MemoryDiff {
  id: string;
  old: number;
  new: number;
  text: string;
  added_tags: string[];
  removed_tags: string[];
  changed_metadata: string[];
}

/** A text that agents remember. ``version`` is 0 unless it was read from a store with versions. */
export interface MemoryDocument {
  id: string;
  content: string;
  metadata?: Record<string, Json>;
  version?: number;
  provenance?: Provenance | null;
}

/** The versions of a document, newest first. */
export interface MemoryHistory {
  versions: MemoryVersion[];
}

/** A search result; a higher score is a better match. */
export interface MemoryHit {
  document: MemoryDocument;
  namespace: string;
  score: number;
}

/** Documents by id. With filters, a page may be short: continue as long as there is a cursor. */
export interface MemoryList {
  documents: MemoryDocument[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** The namespaces that have documents, by name. */
export interface MemoryNamespaces {
  namespaces: string[];
  next_cursor: string | null;
}

/** The version to restore. */
export interface MemoryRestore {
  version: number;
}

/**
 * The results of a search, best first.
 *
 * ``ranked`` is false if the query has no terms to rank by. ``note`` then says why, and the hits are the
 * documents that contain the query literally, newest first.
 */
export interface MemorySearch {
  hits: MemoryHit[];
  ranked?: boolean;
  note?: string;
}

/** One change of a document, from the journal; ``document`` is ``None`` if it was deleted. */
export interface MemoryVersion {
  id: string;
  version: number;
  operation: "deleted" | "saved";
  document: MemoryDocument | null;
  provenance: Provenance | null;
  changed_at_us: number;
  seq: number;
  changed_at: string;
}

/** A message that differs at the same index in both. */
export interface MessageChange {
  index: number;
  before: Json;
  after: Json;
}

/** The conversation at a step. ``first`` is the index of the first message here, of ``total``. */
export interface Messages {
  total: number;
  first: number;
  new: number;
  messages: ReadMessage[];
}

/** An amount in one currency. */
export interface Money {
  currency: string;
  amount: number;
}

/** What a move did: where the project was and is, and for how long its writers waited. */
export interface MoveReport {
  project: string;
  source: string;
  target: string;
  spaces: string[];
  rows: number;
  bytes: number;
  pause_seconds: number;
  seconds: number;
}

/** The database to move to, without a password; ``null`` for the store's first one. */
export interface MoveRequest {
  url: string | null;
}

/** Who answers questions about a tool, and what happens if nobody does. */
export interface NewApprovalRule {
  tool?: string;
  agent?: string;
  thread?: string;
  who?: string[];
  seconds?: number | null;
  then?: "approve" | "deny" | "escalate" | "wait";
  escalate_to?: string[];
  escalate_seconds?: number | null;
  at_last?: "approve" | "deny" | "wait";
  quorum?: number;
}

/** What may be used. Unset limits do not apply; one is required. */
export interface NewBudget {
  per: "agent" | "run" | "store" | "thread";
  every?: "day" | "month" | null;
  agent?: string | null;
  money?: number | null;
  currency?: string;
  tokens?: number | null;
  tool_calls?: number | null;
  action?: "stop" | "warn";
  warn_at?: number;
  strict?: boolean;
  call_money?: number | null;
  call_tokens?: number | null;
}

/** What to save. What is left out stays as it was; ``append`` adds messages to those that are stored. */
export interface NewCheckpoint {
  messages?: Json[] | null;
  append?: Json[] | null;
  state?: Record<string, Json> | null;
  lists?: Record<string, Json[]> | null;
  pending_interrupt?: Json;
  metadata?: Record<string, Json>;
  note?: string | null;
  tags?: string[];
  expect_head?: string | null;
}

/** What stands for the messages before a boundary (``summary``, or ``messages``), and what it cost. */
export interface NewCompaction {
  summary?: string;
  messages?: Json[] | null;
  keep_last?: number | null;
  upto?: number | null;
  model?: string | null;
  usage?: Record<string, number> | null;
  cost?: string | null;
  note?: string | null;
}

/**
 * The id of the new thread, and the checkpoint where it begins (default: the head).
 *
 * ``messages`` and ``state`` begin it with other messages or another state, each as a whole.
 */
export interface NewFork {
  new_id: string;
  at?: string | null;
  namespace?: string | null;
  messages?: Json[] | null;
  state?: Record<string, Json> | null;
  note?: string | null;
}

/** The scope of a new key, a name for it, and whether it may answer questions of agents as that name. */
export interface NewKeyRequest {
  scope?: "admin" | "read" | "write";
  name?: string;
  approves?: boolean;
}

/** A whole document. Omitted fields are empty; ``if_version`` 0 means that it must not exist. */
export interface NewMemoryDocument {
  content: string;
  tags?: string[];
  auto_load?: boolean;
  expires_at?: string | null;
  metadata?: Record<string, Json>;
  if_version?: number | null;
  provenance?: Provenance | null;
}

/** When to raise an alert: a failed run, many failures, or more than so many times the median. */
export interface NewRule {
  what: "cost" | "duration" | "failed" | "failures" | "tokens";
  agent?: string | null;
  times?: number;
  share?: number;
  runs?: number;
  at_least?: number;
}

/** The new seal, or null if there was nothing to seal. */
export interface NewSeal {
  seal: Seal | null;
}

/** A value to set; with ``if_version`` only if the key is at that version (0: it does not exist). */
export interface NewStateValue {
  value: Json;
  if_version?: number | null;
}

/** A task to schedule: by a cron expression, at an interval in seconds, or once at an ISO 8601 time. */
export interface NewTask {
  prompt: string;
  type: "cron" | "interval" | "once";
  value: string | number;
  tz?: string;
  channel?: string;
  chat_id?: string;
  catch_up?: "all" | "once" | "skip";
  overlap?: "allow" | "buffer" | "skip";
  metadata?: Record<string, Json>;
}

/** What an agent said; or, with ``error``, how it failed. */
export interface NewTranscriptEvent {
  agent_id: string;
  iter: number;
  role?: "advisor" | "agent" | "moderator" | "summarizer" | "user";
  content?: string | Record<string, Json> | null;
  metadata?: Record<string, Json> | null;
  actions?: Actions | null;
  latency_ms?: number | null;
  error?: string | null;
}

/** Where to send alerts, and the server's environment variable that holds the signing key. */
export interface NewWebhook {
  url: string;
  secret_env?: string | null;
}

/** Finished and skipped occurrences, newest first. */
export interface OccurrenceList {
  occurrences: OccurrenceReport[];
  next_cursor: number | null;
}

/** The outcome of one occurrence, or of ``count`` occurrences skipped in a row. */
export interface OccurrenceReport {
  task_id: string;
  outcome: "error" | "ok" | "skipped";
  scheduled_at_us: number;
  last_scheduled_at_us: number;
  count?: number;
  reason?: string;
  result?: Json;
  attempt?: number;
  token?: number;
  run_id?: string | null;
  ended_at_us: number;
  duration_us?: number;
  late_us?: number;
  manual?: boolean;
  scheduled_at: string;
  last_scheduled_at: string;
  ended_at: string;
}

/** An unfinished occurrence: waiting, or (if ``worker`` is set) claimed by a worker. */
export interface OpenOccurrence {
  at_us: number;
  worker?: string | null;
  claimed_at_us?: number;
  attempt?: number;
  token?: number;
  manual?: boolean;
  at: string;
  claimed_at?: string;
}

/** A file that a session has left in the ``output`` folder of its workspace. */
export interface OutputFile {
  path: string;
  size_bytes: number;
}

/**
 * A piece of a message.
 *
 * ``text`` has the words of a text, thought or error, the text of a tool's result, or a citation's title.
 * ``name`` is the tool's or the file's. ``call_id`` connects a result with its call. ``value`` has the
 * arguments of a call, a structured result, or the data. ``parts`` are those of a result that is more than
 * text, such as a screenshot. ``url`` locates an image, a file or a source; inline bytes have a ``data:``
 * URL.
 */
export interface Part {
  kind: "citation" | "data" | "error" | "file" | "image" | "text" | "thinking" | "tool_call" | "tool_result";
  text?: string;
  name?: string | null;
  call_id?: string | null;
  value?: Json;
  url?: string | null;
  media_type?: string | null;
  parts?: Part[];
  is_error?: boolean;
}

/** The half-streamed reply of a thread; ``null`` if it does not end with one. */
export interface Partial {
  partial: PartialLine | null;
}

/** What a model had said when its stream broke off, or has said so far if its run is ``running``. */
export interface PartialLine {
  run: string;
  run_status: string | null;
  started_at: string;
  text: string;
  chunks: number;
}

/**
 * The distribution of a time in microseconds. The mean is exact; each percentile and the maximum is
 * within 2 % of the measured value that has this rank (`core.rollups.RELATIVE_ERROR`).
 */
export interface Percentiles {
  p50_us: number;
  p90_us: number;
  p95_us: number;
  p99_us: number;
  max_us: number;
  mean_us: number;
}

/** Rows, the most called first. */
export interface PerformanceReport {
  by: "agent" | "kind" | "model" | "run" | "tool";
  total: PerformanceRow;
  rows: PerformanceRow[];
}

/** The performance of one agent, model or tool; ``key`` is its name, ``None`` for the total. */
export interface PerformanceRow {
  key: string | null;
  calls: number;
  errors: number;
  error_rate: number;
  latency: Percentiles | null;
  first_token: Percentiles | null;
  output_tokens: number;
  tokens_per_second: number | null;
}

/** What to do with occurrences that are late, or due while another one is open. */
export interface Policy {
  catch_up?: "all" | "once" | "skip";
  catch_up_max?: number;
  window_seconds?: number | null;
  grace_seconds?: number;
  overlap?: "allow" | "buffer" | "skip";
  max_attempts?: number;
}

/** Evidence that an event is part of a sealed history; see `treering.maintenance.check_proof`. */
export interface Proof {
  event: string;
  salt: string;
  commit: Record<string, Json>;
  path: ([string, string])[];
  commit_path: ([string, string])[];
  seal: Seal;
  format?: string;
}

/**
 * Where a version came from.
 *
 * ``source`` is free text (a URL, a person, a tool). The ``trust`` of a version is never higher than that
 * of the documents in ``derived_from``. Inside ``with store.run()`` the run is filled in.
 */
export interface Provenance {
  run?: string | null;
  step?: number | null;
  source?: string | null;
  trust?: "high" | "low" | "medium" | null;
  derived_from?: string[];
}

/** Seals as they were published, and the public key (PEM) that they have to be signed with, if any. */
export interface PublishedSeals {
  against?: Seal[];
  key?: string | null;
}

/** A message as people see it: who says it (``name`` if the role is not enough), and its parts. */
export interface ReadMessage {
  role: string;
  parts: Part[];
  name?: string | null;
}

/** A problem found by `check`. */
export interface RecordsProblem {
  kind: "corrupt" | "counter" | "dangling" | "derived" | "list";
  where: string;
  detail: string;
}

/** Steps, and the ``skip`` of the next page; ``None`` on the last one. */
export interface Replay {
  steps: ReplayLine[];
  next_skip: number | null;
}

/** A step of a run; ``chunk`` is a piece of a stream, ``content`` a message, an input or an output. */
export interface ReplayLine {
  offset_us: number;
  wait_us: number;
  type: string;
  label: string;
  agent: string | null;
  ref: Record<string, string>;
  meta: Record<string, Json>;
  chunk: string | null;
  content?: Json;
}

/** Reruns that this server makes. ``done`` of ``total`` have ended. */
export interface RerunJob {
  id: string;
  run: string;
  status: "cancelled" | "done" | "failed" | "running";
  total: number;
  done: number;
  started_at_us: number;
  group?: string | null;
  error?: string | null;
  started_at: string;
}

/** What to rerun: the first call that is made for real, and variants of model and system prompt. */
export interface RerunOrder {
  from_step: number;
  model?: string[];
  prompt?: string[];
  parameters?: Record<string, Json>;
  repeat?: number;
  verify?: string | null;
}

/**
 * Whether a run can be made again, what this server is making of it, and how reruns compare with it.
 *
 * ``can_start`` says whether this server does it when asked; if not, ``why_not`` says what is missing.
 */
export interface Reruns {
  run: string;
  calls: number;
  entry: string | null;
  can_start: boolean;
  why_not: string | null;
  jobs: RerunJob[];
  groups: string[];
  comparison: Comparison | null;
}

/** The head moved back. */
export interface RewindLine {
  at: string;
  before: string | null;
  to: string;
}

/** The checkpoint that is the head now, and the tool calls since then, which are not undone. */
export interface Rewound {
  id: string;
  thread: string;
  namespace: string;
  parent: string | null;
  step: number;
  created_at: string;
  note: string | null;
  tags: string[];
  metadata: Record<string, Json>;
  pending_interrupt: Json;
  message_count: number;
  last_message: Said | null;
  snapshot: string | null;
  effects: Effect[];
}

/** Rules by name. */
export interface RuleList {
  rules: AlertRule[];
  unreadable?: Unreadable[];
}

/** Runs side by side. ``divergences`` has one item for each run but the first, compared with the first. */
export interface RunComparison {
  runs: RunFigures[];
  divergences: (Divergence | null)[];
}

/** The numbers of one run. ``steps`` counts messages and spans by kind, ``errors`` failed spans. */
export interface RunFigures {
  run: RunInfo;
  cost: Cost;
  usage: Usage;
  duration_us: number | null;
  steps: Record<string, number>;
  errors: number;
  busy_us: Record<string, number>;
}

/** The state of a run, without its timeline. */
export interface RunInfo {
  id: string;
  agent?: string | null;
  thread?: string | null;
  namespace?: string;
  status?: string;
  started_at_us: number;
  ended_at_us?: number | null;
  recorders?: string[];
  project_id?: number | null;
  meta?: Record<string, Json>;
  tags?: string[];
  parent?: string | null;
  started_at: string;
  ended_at?: string | null;
}

/**
 * A run in a list.
 *
 * ``input`` and ``output`` are the beginnings of its question and answer, ``error`` is what it failed with.
 * ``has_thread``: whether the thread that it names was saved; a run may name one that never was.
 */
export interface RunLine {
  id: string;
  agent: string | null;
  thread: string | null;
  has_thread: boolean;
  namespace: string;
  input: string | null;
  output: string | null;
  error: string | null;
  status: string;
  started_at: string;
  started_at_us: number;
  ended_at: string | null;
  ended_at_us: number | null;
  duration_us: number | null;
  tokens: number;
  usage: Usage;
  cost: Money[];
  unpriced_tokens: number;
  events: number;
  errors: number;
  archived?: boolean;
  tags: string[];
  meta: Record<string, Json>;
  project_id: number | null;
  parent: string | null;
}

/** Runs, newest first. A page may be short: continue as long as there is a cursor. */
export interface RunList {
  runs: RunLine[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** A span, a message or another record of a run. An ``is_open`` span was running when it was written. */
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
  data: Record<string, Json>;
  has_input: boolean;
  has_output: boolean;
  started_at: string;
}

/** The beginning of a message on one line, and who says it. */
export interface Said {
  role: string;
  text: string;
}

/** Tasks, oldest first. */
export interface ScheduleList {
  schedules: ScheduledTask[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** A task and its next due times. */
export interface ScheduledTask {
  task: Task;
  next: string[];
}

/**
 * A seal over the commits with numbers above ``after_seq``, up to ``to_seq``.
 *
 * ``previous`` is the hash of the seal before it. ``entries`` lists the commits; the journal holds seals
 * without them, because the store has the commits.
 */
export interface Seal {
  namespace: string;
  number: number;
  after_seq: number;
  to_seq: number;
  commits: number;
  root: string;
  previous: string | null;
  sealed_at_us: number;
  format?: string;
  key?: string | null;
  signature?: string | null;
  entries?: SealedCommit[] | null;
  sealed_at: string;
}

/** The seals of a project, oldest first, without their lists of commits. */
export interface SealList {
  seals: Seal[];
}

/** When to seal: with fewer commits than ``min_commits``, only once the oldest is older than this. */
export interface SealRequest {
  min_commits?: number;
  max_age_seconds?: number | null;
}

/** A commit in a seal: its numbers, its time, and the salted hash of each of its rows, by kind. */
export interface SealedCommit {
  first_seq: number;
  last_seq: number;
  committed_at_us: number;
  batch: string;
  event?: string[];
  body?: string[];
  append?: string[];
  ref?: string[];
  text?: string[];
  committed_at: string;
}

/**
 * Hits, those with the most words first, then the newest. ``words`` are the words searched for.
 *
 * ``is_partial``: too many events contain the words to read all of them; more may match the filters.
 * ``not_indexed``: so many events were not looked at, because they are not in the index yet.
 */
export interface SearchResult {
  hits: Hit[];
  words: string[];
  is_partial?: boolean;
  not_indexed?: number;
}

/** Where keys and passwords seem to be; never what they are. */
export interface Secrets {
  count: number;
  secrets: FoundSecret[];
}

/** What to erase: a thread (in a namespace), a whole namespace, or one scope. */
export interface Selection {
  thread?: string | null;
  namespace?: string | null;
  scope?: string | null;
  cascade?: boolean;
}

/**
 * The files in a session's ``output`` folder, and which session it is.
 *
 * ``tag`` and ``sandbox_id`` are in the name of the session's log. Without a ``checkpoint`` it is what the
 * sandbox has now.
 */
export interface SessionOutput {
  tag: string | null;
  sandbox_id: string | null;
  checkpoint: string | null;
  files: OutputFile[];
}

/** What each run, thread or agent, or the whole store, may use. Unset limits do not apply. */
export interface SharedBudget {
  name: string;
  per: "agent" | "run" | "store" | "thread";
  every?: "day" | "month" | null;
  agent?: string | null;
  money_nanos?: number | null;
  currency?: string | null;
  tokens?: number | null;
  tool_calls?: number | null;
  action?: "stop" | "warn";
  warn_at?: number;
  strict?: boolean;
  call_money_nanos?: number | null;
  call_tokens?: number | null;
}

/** The result of a check. ``size_bytes`` were read and verified. */
export interface SnapshotCheck {
  id: string;
  files: number;
  size_bytes: number;
  problems: SnapshotProblem[];
}

/**
 * A file, folder or link in a snapshot.
 *
 * ``hash`` is the object of a small file, or the tree of a folder.
 */
export interface SnapshotEntry {
  path: string;
  kind: "file" | "folder" | "link";
  mode: number;
  size?: number;
  target?: string | null;
  hash?: string | null;
}

/**
 * A snapshot as the journal records it.
 *
 * ``workspace`` is the name that the snapshots of one folder share (by default its path). ``files`` and
 * ``size_bytes`` are what a full restore writes. ``secrets`` are what looks like keys and passwords in
 * them; the journal has the first 100.
 */
export interface SnapshotInfo {
  id: string;
  workspace: string;
  taken_at_us: number;
  files: number;
  size_bytes: number;
  read_files: number;
  note?: string | null;
  tags?: string[];
  left_out?: LeftOut[];
  changed?: string[];
  secrets?: FoundSecret[];
  taken_at: string;
}

/** A path that cannot be restored, and why. */
export interface SnapshotProblem {
  path: string;
  message: string;
}

/** Snapshots, newest first. Those of checkpoints are listed with their threads. */
export interface Snapshots {
  snapshots: SnapshotInfo[];
  next_cursor: string | null;
}

/**
 * A record with its content; that of a message is its ``output``.
 *
 * If the request asked for it, ``readable_input`` and ``readable_output`` have the messages that the input
 * and output consist of, as roles and parts, whatever their format.
 */
export interface SpanContent {
  record: RunRecord;
  input?: Json;
  output?: Json;
  readable_input?: ReadMessage[] | null;
  readable_output?: ReadMessage[] | null;
}

/** Spans, messages and other records in the order of their start. */
export interface SpanList {
  records: RunRecord[];
  next_cursor: string | null;
}

/** A figure over the repetitions of a variant. */
export interface Spread {
  mean: number;
  deviation: number;
  least: number;
  most: number;
}

/** A SELECT, values for its ``?``, and its bounds. */
export interface SqlRequest {
  sql: string;
  params?: (string | number | boolean | null)[];
  max_rows?: number;
  seconds?: number;
}

/** The rows of a query. Dates and times are ISO 8601; with ``truncated``, there are more rows. */
export interface SqlRows {
  columns: string[];
  types: string[];
  rows: Json[][];
  truncated: boolean;
  seconds: number;
}

/** The state of the thread at a step, and the JSON patch from the step before. */
export interface State {
  thread: string;
  namespace: string;
  checkpoint: string;
  number: number;
  value: Json;
  changes: (Record<string, Json>)[];
}

/** A number to add; nothing is added if the sum would exceed ``ceiling``. */
export interface StateAddition {
  delta?: number;
  ceiling?: number | null;
}

/** One change of a key, from the journal; ``value`` is the new value (``None`` if it was deleted). */
export interface StateChange {
  key: string;
  operation: "added" | "deleted" | "set";
  value: Json;
  version: number | null;
  changed_at_us: number;
  seq: number;
  changed_at: string;
}

/** A key and its current value. ``version`` counts every change, deletions included. */
export interface StateEntry {
  key: string;
  value: Json;
  version: number;
  changed_at_us: number;
  changed_at: string;
}

/** Keys with their values, in order. */
export interface StateEntryList {
  entries: StateEntry[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** The changes of a key, newest first. */
export interface StateHistory {
  changes: StateChange[];
}

/** The new value of the key. */
export interface StateSum {
  value: number;
}

/**
 * Rows and stored bytes of one space; can also be read like a dict (``stats["rows"]["events"]``).
 *
 * ``growth_bytes`` are stored bytes by the UTC day of their commit. ``disk_bytes`` is the size of the files
 * of a local store, for all its spaces together; ``None`` for any other store. ``is_estimate``: what was
 * committed since the last measurement is estimated, and what was erased since is included.
 */
export interface Stats {
  url: string;
  space: string;
  rows: Record<string, number>;
  bytes: Record<string, number>;
  total_bytes: number;
  growth_bytes: Record<string, number>;
  disk_bytes?: number | null;
  is_estimate?: boolean;
}

/** A step of a run, without its content. Tokens and costs (by currency) so far include its own. */
export interface Step {
  number: number;
  id: string;
  kind: "call" | "message" | "span";
  type: string;
  name: string | null;
  agent: string | null;
  role: string | null;
  model: string | null;
  status: string | null;
  started_at_us: number;
  duration_us: number | null;
  tokens: number;
  cost: number | null;
  currency: string | null;
  tokens_so_far: number;
  cost_so_far: Record<string, number>;
  call: number;
  span?: string | null;
  started_at: string;
}

/** How many steps a run has. */
export interface StepCount {
  steps: number;
}

/** Steps in their order, and the cursor of the next page. A page may be short. */
export interface StepPage {
  steps: Step[];
  next_cursor: string | null;
}

/** A step with its content, and the run as it was then. */
export interface StepView {
  step: Step;
  until_us: number;
  is_last: boolean;
  input: ReadMessage[] | null;
  input_value: Json;
  output: ReadMessage[] | null;
  output_value: Json;
  error: string | null;
  messages: Messages | null;
  state: State | null;
  files: Files | null;
  memory: MemoryAccess[];
  until: string;
}

/** What to keep (without a rule: everything), and whether to change anything. */
export interface Sweep {
  keep?: KeepRule | null;
  dry_run?: boolean;
  grace_seconds?: number;
}

/** What a garbage collection removed, or would remove in a dry run. */
export interface Swept {
  objects?: number;
  bodies?: number;
  lists?: number;
  packs?: number;
  bytes?: number;
  kept_objects?: number;
  dry_run?: boolean;
}

/** A scheduled task and its current state. */
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
  status?: "active" | "cancelled" | "done" | "paused";
  policy?: Policy;
  open_occurrences?: OpenOccurrence[];
  runs?: number;
  claims?: number;
  last_manual_us?: number;
  metadata?: Record<string, Json>;
  created_at: string;
  last_run?: string | null;
  next_run?: string | null;
  last_manual?: string;
}

/** A thread whose id or messages contain the words. */
export interface ThreadHit {
  thread: string;
  namespace: string;
  updated_at_us: number;
  part: "id" | "message" | "run";
  role?: string | null;
  snippet?: string;
  updated_at: string;
}

/** A thread, as its head describes it. */
export interface ThreadLine {
  id: string;
  namespace: string;
  head: string;
  step: number;
  created_at: string;
  updated_at: string;
}

/** Threads, last changed first. */
export interface ThreadList {
  threads: ThreadOverview[];
  next_cursor: string | null;
  unreadable?: Unreadable[];
}

/** A thread in a list; ``is_damaged`` if its newest checkpoint cannot be read. */
export interface ThreadOverview {
  id: string;
  namespace: string;
  head: string;
  step: number;
  created_at: string;
  updated_at: string;
  message_count: number;
  last_message: Said | null;
  note: string | null;
  tags: string[];
  is_pending: boolean;
  is_damaged: boolean;
  tokens: number;
  cost: Money[];
  unpriced_tokens: number;
}

/** Events of a transcript as its file has them, in the order in which they were executed. */
export interface TranscriptEvents {
  events: (Record<string, Json>)[];
  next_cursor: string | null;
}

/** What a run, or everything below it, has cost. */
export interface TreeCost {
  tokens: number;
  cost: Money[];
  unpriced_tokens: number;
  events: number;
  errors: number;
}

/** A run with all its attempts (it was resumed by the later ones), and the runs that it started. */
export interface TreeLine {
  id: string;
  agent: string | null;
  thread: string | null;
  sandbox: string | null;
  namespace: string;
  status: string;
  is_cancelled: boolean;
  is_over: boolean;
  started_at: string;
  attempts: AttemptLine[];
  own: TreeCost;
  total: TreeCost;
  children: TreeLine[];
}

/** An entry that is missing from a list, and why. */
export interface Unreadable {
  name: string;
  problem: string;
}

/**
 * Token counts in disjoint classes; ``reasoning`` is the part of ``output`` spent on reasoning.
 *
 * ``other`` is what a given total has beyond the classes that are known.
 */
export interface Usage {
  input?: number;
  cache_read?: number;
  cache_write?: number;
  cache_write_1h?: number;
  output?: number;
  reasoning?: number;
  other?: number;
}

/** All repetitions of a variant. */
export interface VariantSummary {
  variant: string;
  runs: number;
  ok: number;
  verified: number | null;
  first_departure: number | null;
  tokens: Spread | null;
  cost: Spread | null;
  seconds: Spread | null;
  messages: Spread | null;
}

/**
 * The report of `verify`. ``more`` is the number of problems not listed in ``problems``.
 *
 * ``since`` is the sequence number behind which commits were checked (0 for all of them), and ``last_seq``
 * that of the last commit when the check began.
 */
export interface Verification {
  ok: boolean;
  problems: RecordsProblem[];
  checked: Checked;
  more?: number;
  since?: number;
  last_seq?: number;
}

/** What a command said about the files of a run. */
export interface VerifyResult {
  command: string;
  exit_code: number;
  output: string;
}

/** What a model is to be given. ``left_out`` messages behind the summary did not fit. */
export interface View {
  messages: Json[];
  compaction: CompactionLine | null;
  left_out: number;
  tokens: number | null;
  tokenizer: string | null;
  is_exact: boolean;
}

/** One person's answer. ``value`` are the edited arguments, or another value that the asker takes. */
export interface Vote {
  by: string;
  decision: "approve" | "cancel" | "deny" | "edit";
  at_us: number;
  reason?: string | null;
  value?: Json;
  at: string;
}

/** A URL that alerts are sent to. */
export interface Webhook {
  name: string;
  url: string;
  secret_env?: string | null;
}

/** Webhooks by name. */
export interface WebhookList {
  webhooks: Webhook[];
  unreadable?: Unreadable[];
}

/** The differences, by path. */
export interface WorkspacesChanges {
  changes: FileChange[];
}

/** Every operation of the server, by its id. */
export interface Operations {
  /** List runs, newest first. */
  list_runs: {
    path: Record<string, never>;
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only this status: `ok`, `error`, `running`, `crashed`, ... */
      status?: string;
      /** Only this thread. */
      thread?: string;
      /** Only what has this tag. Where it can be repeated, see `match`. */
      tag?: string;
      /** From this time on, in microseconds since 1970. */
      since_us?: number;
      /** Up to, but not including, this time, in microseconds since 1970. */
      until_us?: number;
      /** The most of this first, in one page; unset for the newest first. */
      sort?: "cost" | "duration" | "tokens";
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: RunList;
    given: { query?: Operations["list_runs"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a run with its status and cost. */
  get_run: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: RunLine;
    given: { path: Operations["get_run"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Return a run with its attempts and the runs of its sub-agents, with own and total cost. */
  get_tree: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: TreeLine;
    given: { path: Operations["get_tree"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Ask a run and everything below it to stop; return the runs that had not ended. */
  cancel_run: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: CancelBody;
    reply: Cancelled;
    given: { path: Operations["cancel_run"]["path"]; body: Operations["cancel_run"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the spans, messages and other records of a run, by start, without their content. */
  list_spans: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: SpanList;
    given: { path: Operations["list_spans"]["path"]; query?: Operations["list_spans"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a span or message with its input and output. */
  get_span: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
      /** The id of the span or message. */
      span: string;
    };
    query: {
      /** Add the messages as roles and parts (text, tool calls, images, ...), whatever their format. */
      readable?: boolean;
    };
    body: undefined;
    reply: SpanContent;
    given: { path: Operations["get_span"]["path"]; query?: Operations["get_span"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare two runs, and return the first step at which they differ. */
  compare_runs: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
      /** The run to compare with, by its id or a unique beginning of it. */
      other: string;
    };
    query: {
      /** Convert amounts to this currency, such as `EUR`; unset for each in its own. */
      currency?: string;
    };
    body: undefined;
    reply: RunComparison;
    given: { path: Operations["compare_runs"]["path"]; query?: Operations["compare_runs"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare agents over all days, or over a range of days. */
  compare_agents: {
    path: Record<string, never>;
    query: {
      /** An agent to compare. Repeat it for each. */
      agent: string[];
      /** The first day, such as `2026-11-16` (UTC). */
      since?: string;
      /** The last day, such as `2026-11-30` (UTC). */
      until?: string;
      /** Convert amounts to this currency, such as `EUR`; unset for each in its own. */
      currency?: string;
    };
    body: undefined;
    reply: AgentComparison;
    given: { query: Operations["compare_agents"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a run as it happened: starts, ends, messages, and the chunks of streams with their times. */
  replay: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** Whether to return the messages, inputs and outputs too. */
      contents?: boolean;
      /** How many steps to leave out at the beginning: the `next_skip` of the previous page. */
      skip?: number;
      /** The most that a page returns. */
      limit?: number;
    };
    body: undefined;
    reply: Replay;
    given: { path: Operations["replay"]["path"]; query?: Operations["replay"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the timeline of a run, oldest first. */
  get_timeline: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** `all` for more than the five usual types of event. */
      types?: "all";
      /** Only this span, and those below it. */
      span?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only this kind: `message`, or a kind of span (`agent`, `llm`, `tool`, ...). */
      kind?: string;
      /** Only this status: `ok`, `error`, `running`, `crashed`, ... */
      status?: string;
      /** Only events in which all of these words occur (name, input or output; stemmed). */
      text?: string;
    };
    body: undefined;
    reply: Record<string, Json>;
    given: { path: Operations["get_timeline"]["path"]; query?: Operations["get_timeline"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the timeline of all runs of a thread, oldest first; empty for a thread without runs. */
  get_thread_timeline: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** `all` for more than the five usual types of event. */
      types?: "all";
      /** Only this span, and those below it. */
      span?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only this kind: `message`, or a kind of span (`agent`, `llm`, `tool`, ...). */
      kind?: string;
      /** Only this status: `ok`, `error`, `running`, `crashed`, ... */
      status?: string;
      /** Only events in which all of these words occur (name, input or output; stemmed). */
      text?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: Record<string, Json>;
    given: { path: Operations["get_thread_timeline"]["path"]; query?: Operations["get_thread_timeline"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Find messages, inputs and outputs by their words, those with the most of them first. */
  search: {
    path: Record<string, never>;
    query: {
      /** The words to search for. All of them must occur. */
      q: string;
      /** Only this run. */
      run?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only this kind: `message`, or a kind of span (`agent`, `llm`, `tool`, ...). */
      kind?: string;
      /** From this time on, in microseconds since 1970. */
      since_us?: number;
      /** Up to, but not including, this time, in microseconds since 1970. */
      until_us?: number;
      /** The most hits to return. */
      limit?: number;
    };
    body: undefined;
    reply: SearchResult;
    given: { query: Operations["search"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the cost of a run, by agent, in tokens and euros. */
  get_cost: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Record<string, Json>;
    given: { path: Operations["get_cost"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Return the cost of everything, or of one thread, by day, agent, model, kind, run, thread or tag. */
  get_costs: {
    path: Record<string, never>;
    query: {
      /** What to group by. */
      by?: "agent" | "day" | "kind" | "model" | "run" | "tag" | "thread";
      /** The first day, such as `2026-11-16` (UTC). */
      since?: string;
      /** The last day, such as `2026-11-30` (UTC). */
      until?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only calls of this model. */
      model?: string;
      /** Only this thread. */
      thread?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Convert amounts to this currency, such as `EUR`; unset for each in its own. */
      currency?: string;
    };
    body: undefined;
    reply: CostTable;
    given: { query?: Operations["get_costs"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return latency percentiles, time to first token, tokens per second and failures. */
  get_performance: {
    path: Record<string, never>;
    query: {
      /** What to group by. */
      by?: "agent" | "kind" | "model" | "run" | "tool";
      /** Only what this agent did. */
      agent?: string;
      /** Only this run. */
      run?: string;
      /** From this time on, in microseconds since 1970. */
      since_us?: number;
      /** Up to, but not including, this time, in microseconds since 1970. */
      until_us?: number;
    };
    body: undefined;
    reply: PerformanceReport;
    given: { query?: Operations["get_performance"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the steps of a run in their order, without content, with tokens and costs so far. */
  list_steps: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** Begin behind the step of this number, instead of at a cursor. */
      after?: number;
    };
    body: undefined;
    reply: StepPage;
    given: { path: Operations["list_steps"]["path"]; query?: Operations["list_steps"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Count the steps of a run. */
  get_step_count: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: StepCount;
    given: { path: Operations["get_step_count"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Find the next step with a tool, an error, a cost or a text: what a debugger continues to. */
  find_next_step: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** The number of a step; 0 for the beginning. */
      after?: number;
      /** Look for the last one before `after`, instead of the first one behind it. */
      back?: boolean;
      /** A tool that is called. Repeat it for several. */
      tool?: string[];
      /** A step that failed. */
      error?: boolean;
      /** The step with which the costs so far pass this amount. */
      cost_above?: number;
      /** A text in the name or content of a step, in any case. */
      text?: string;
    };
    body: undefined;
    reply: FoundStep;
    given: { path: Operations["find_next_step"]["path"]; query?: Operations["find_next_step"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a step with its content, and the conversation, state, files and memory of that moment. */
  get_step: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
      /** The number of the step, from 1. */
      number: string;
    };
    query: {
      /** How many messages of the conversation to return, from its end. */
      messages?: number;
    };
    body: undefined;
    reply: StepView;
    given: { path: Operations["get_step"]["path"]; query?: Operations["get_step"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare a run with its reruns, and say whether it can be made again here. */
  get_reruns: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** The reruns of one call of `rerun`; unset for the newest. */
      group?: string;
    };
    body: undefined;
    reply: Reruns;
    given: { path: Operations["get_reruns"]["path"]; query?: Operations["get_reruns"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Make a run again from a call on, in a process of its own. `GET` shows its progress and comparison. */
  start_rerun: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: RerunOrder;
    reply: RerunJob;
    given: { path: Operations["start_rerun"]["path"]; body: Operations["start_rerun"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Stop reruns that this server makes. Those that ended stay. */
  cancel_rerun: {
    path: {
      /** The id of the run, or a unique beginning of it. */
      id: string;
      /** The id of the reruns, as `POST` returned it. */
      job: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: RerunJob;
    given: { path: Operations["cancel_rerun"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Find threads, runs and memory by their words, each kind on its own, best first. */
  search_everything: {
    path: Record<string, never>;
    query: {
      /** The words to search for. All of them must occur. */
      q: string;
      /** The most hits of each kind. */
      limit?: number;
    };
    body: undefined;
    reply: Found;
    given: { query: Operations["search_everything"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List threads, last changed first. A thread that changes between two pages moves to the front. */
  list_threads: {
    path: Record<string, never>;
    query: {
      /** Only ids that begin with this text. */
      prefix?: string;
      /** Only ids that have this text anywhere, in any case. */
      containing?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: ThreadList;
    given: { query?: Operations["list_threads"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the newest checkpoint of a thread, with all or only the last messages. */
  get_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Return only so many messages from the end; unset for all. */
      last?: number;
      /** Add the messages as roles and parts (text, tool calls, images, ...), whatever their format. */
      readable?: boolean;
    };
    body: undefined;
    reply: CheckpointContent;
    given: { path: Operations["get_thread"]["path"]; query?: Operations["get_thread"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Delete a thread: checkpoints, transcript, and its lines in files on this server. */
  delete_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Erase the forks that share its past as well; otherwise they are a conflict. */
      cascade?: boolean;
    };
    body: undefined;
    reply: Cleaned;
    given: { path: Operations["delete_thread"]["path"]; query?: Operations["delete_thread"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the checkpoints that lead to the head, newest first. */
  get_history: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** Only what has this tag. Where it can be repeated, see `match`. */
      tag?: string[];
      /** Include checkpoints that a rewind left behind. */
      everything?: boolean;
    };
    body: undefined;
    reply: History;
    given: { path: Operations["get_history"]["path"]; query?: Operations["get_history"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the tree of a thread: checkpoints, rewinds and forks. */
  get_lineage: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: Lineage;
    given: { path: Operations["get_lineage"]["path"]; query?: Operations["get_lineage"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return one checkpoint by its id, step, `~1` or a time: messages, state and lists. */
  get_checkpoint: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
      /** The id of a checkpoint, or a unique beginning of it. */
      checkpoint: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Return only so many messages from the end; unset for all. */
      last?: number;
      /** Add the messages as roles and parts (text, tool calls, images, ...), whatever their format. */
      readable?: boolean;
    };
    body: undefined;
    reply: CheckpointContent;
    given: { path: Operations["get_checkpoint"]["path"]; query?: Operations["get_checkpoint"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare two checkpoints: messages, state (a JSON patch) and files. */
  diff_threads: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The first of the two to compare. */
      a: string;
      /** The second of the two to compare. */
      b: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The thread that `b` is a checkpoint of; unset for the same thread. */
      other?: string;
      /** Add the messages as roles and parts (text, tool calls, images, ...), whatever their format. */
      readable?: boolean;
    };
    body: undefined;
    reply: Difference;
    given: { path: Operations["diff_threads"]["path"]; query: Operations["diff_threads"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Save a checkpoint. If `head` is no longer the head, this is a conflict and nothing is written. */
  save_checkpoint: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewCheckpoint;
    reply: CheckpointSummary;
    given: { path: Operations["save_checkpoint"]["path"]; query?: Operations["save_checkpoint"]["query"]; body: Operations["save_checkpoint"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Start a new thread at a checkpoint of this one. They share their past. */
  fork_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewFork;
    reply: ThreadLine;
    given: { path: Operations["fork_thread"]["path"]; query?: Operations["fork_thread"]["query"]; body: Operations["fork_thread"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Move the head back to a checkpoint. Later checkpoints stay stored, and side effects are not undone. */
  rewind_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: Back;
    reply: Rewound;
    given: { path: Operations["rewind_thread"]["path"]; query?: Operations["rewind_thread"]["query"]; body: Operations["rewind_thread"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Answer the pending interrupt: approve, deny, or edit with a value. */
  resume_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: Answer;
    reply: CheckpointSummary;
    given: { path: Operations["resume_thread"]["path"]; query?: Operations["resume_thread"]["query"]; body: Operations["resume_thread"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return what a model is to be given: instructions, the summary, and the newest messages that fit. */
  get_view: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** How many tokens it may have; unset for no limit. */
      budget_tokens?: number;
      /** The model whose tokenizer counts, if that is installed; else an estimate. */
      model?: string;
      /** Disregard compactions. */
      full?: boolean;
    };
    body: undefined;
    reply: View;
    given: { path: Operations["get_view"]["path"]; query?: Operations["get_view"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the compactions of a thread, oldest first; the last one is in effect. */
  list_compactions: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: Compactions;
    given: { path: Operations["list_compactions"]["path"]; query?: Operations["list_compactions"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Let a summary stand for all messages but the last ones in the view; nothing is removed. */
  compact_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewCompaction;
    reply: CheckpointSummary;
    given: { path: Operations["compact_thread"]["path"]; query?: Operations["compact_thread"]["query"]; body: Operations["compact_thread"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Remove the newest compaction, or all: the view shows what they stood for again. */
  uncompact_thread: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Remove all compactions, not only the newest. */
      everything?: boolean;
    };
    body: undefined;
    reply: CheckpointSummary;
    given: { path: Operations["uncompact_thread"]["path"]; query?: Operations["uncompact_thread"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the reply that a model was streaming when its process died, if the thread ends there. */
  get_partial: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: Partial;
    given: { path: Operations["get_partial"]["path"]; query?: Operations["get_partial"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Forget the half-streamed reply of a thread. */
  discard_partial: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: void;
    given: { path: Operations["discard_partial"]["path"]; query?: Operations["discard_partial"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return what agents said in a thread, oldest first; empty for a thread without a transcript. */
  get_transcript: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
      /** Return only so many messages from the end; unset for all. */
      last?: number;
    };
    body: undefined;
    reply: TranscriptEvents;
    given: { path: Operations["get_transcript"]["path"]; query?: Operations["get_transcript"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Add an event to the transcript of a thread. It is durable when this returns. */
  append_to_transcript: {
    path: {
      /** The id of the thread, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewTranscriptEvent;
    reply: Record<string, Json>;
    given: { path: Operations["append_to_transcript"]["path"]; query?: Operations["append_to_transcript"]["query"]; body: Operations["append_to_transcript"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the documents of a namespace. */
  list_memory: {
    path: Record<string, never>;
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Only documents with this tag. Repeat it for several; see `match`. */
      tag?: string[];
      /** Whether a document needs `any` of the tags, or `all` of them. */
      match?: "all" | "any";
      /** Only ids that begin with this text. */
      prefix?: string;
      /** Only documents that are (or are not) loaded into every prompt. */
      auto_load?: boolean;
      /** Include documents that have expired. */
      include_expired?: boolean;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: MemoryList;
    given: { query?: Operations["list_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the namespaces that have documents, by name. */
  list_memory_namespaces: {
    path: Record<string, never>;
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: MemoryNamespaces;
    given: { query?: Operations["list_memory_namespaces"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Search documents, best match first. */
  search_memory: {
    path: Record<string, never>;
    query: {
      /** The words to search for. All of them must occur. */
      q: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Search all namespaces. */
      everywhere?: boolean;
      /** Only documents with this tag. Repeat it for several; see `match`. */
      tag?: string[];
      /** Whether a document needs `any` of the tags, or `all` of them. */
      match?: "all" | "any";
      /** The most hits to return. */
      limit?: number;
    };
    body: undefined;
    reply: MemorySearch;
    given: { query: Operations["search_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a document, or a version of it. */
  get_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The version; unset for the newest. */
      version?: number;
      /** Include documents that have expired. */
      include_expired?: boolean;
    };
    body: undefined;
    reply: MemoryDocument;
    given: { path: Operations["get_memory"]["path"]; query?: Operations["get_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Save a document; its former versions are kept. */
  put_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewMemoryDocument;
    reply: MemoryDocument;
    given: { path: Operations["put_memory"]["path"]; query?: Operations["put_memory"]["query"]; body: Operations["put_memory"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Delete a document; its versions are kept until it is forgotten. */
  delete_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Delete only this version; a conflict if there is a newer one. */
      if_version?: number;
    };
    body: undefined;
    reply: Empty;
    given: { path: Operations["delete_memory"]["path"]; query?: Operations["delete_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Erase a document with all its versions, permanently. */
  forget_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: Forgotten;
    given: { path: Operations["forget_memory"]["path"]; query?: Operations["forget_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the versions of a document, newest first. */
  get_memory_history: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: MemoryHistory;
    given: { path: Operations["get_memory_history"]["path"]; query?: Operations["get_memory_history"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare two versions. */
  diff_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The first version to compare. */
      a: number;
      /** The second version to compare; unset for the newest. */
      b?: number;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: MemoryDiff;
    given: { path: Operations["diff_memory"]["path"]; query: Operations["diff_memory"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Save an older version again, as the newest one. */
  restore_memory: {
    path: {
      /** The id of the document, percent-encoded. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: MemoryRestore;
    reply: MemoryDocument;
    given: { path: Operations["restore_memory"]["path"]; query?: Operations["restore_memory"]["query"]; body: Operations["restore_memory"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List snapshots, newest first. */
  list_snapshots: {
    path: Record<string, never>;
    query: {
      /** Only snapshots of the workspace with this name. */
      name?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: Snapshots;
    given: { query?: Operations["list_snapshots"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Compare two snapshots, with a text diff of small files. */
  diff_snapshots: {
    path: Record<string, never>;
    query: {
      /** The first of the two to compare. */
      a?: string;
      /** The second of the two to compare. */
      b?: string;
      /** Whether to return the changed lines of text files. */
      text?: boolean;
    };
    body: undefined;
    reply: WorkspacesChanges;
    given: { query?: Operations["diff_snapshots"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List a folder of a snapshot. */
  list_files: {
    path: {
      /** The id of the snapshot, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** A path within the snapshot. */
      path?: string;
      /** List the folders below as well. */
      recursive?: boolean;
    };
    body: undefined;
    reply: Entries;
    given: { path: Operations["list_files"]["path"]; query?: Operations["list_files"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return one file of a snapshot, or the part of it that a `Range` header names (`bytes=0-499`). */
  get_file: {
    path: {
      /** The id of the snapshot, or a unique beginning of it. */
      id: string;
    };
    query: {
      /** A path within the snapshot. */
      path: string;
      /** Send the file as an attachment, to be saved by a browser. */
      download?: boolean;
    };
    body: undefined;
    reply: void;
    given: { path: Operations["get_file"]["path"]; query: Operations["get_file"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Read and verify every object of a snapshot. */
  check_snapshot: {
    path: {
      /** The id of the snapshot, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: SnapshotCheck;
    given: { path: Operations["check_snapshot"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List what looks like keys, tokens and passwords in the files of a snapshot; the first 1,000. */
  find_secrets: {
    path: {
      /** The id of the snapshot, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Secrets;
    given: { path: Operations["find_secrets"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List the checkpoints of sandboxes, newest first. */
  list_sandbox_checkpoints: {
    path: Record<string, never>;
    query: {
      /** Only what has this tag. Where it can be repeated, see `match`. */
      tag?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: Checkpoints;
    given: { query?: Operations["list_sandbox_checkpoints"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a checkpoint by its id, the beginning of it, or `latest`. */
  get_sandbox_checkpoint: {
    path: {
      /** The id of the checkpoint, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: CheckpointInfo;
    given: { path: Operations["get_sandbox_checkpoint"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Describe the `output` folder of a checkpoint's workspace, and which session it is of. */
  get_sandbox_output: {
    path: {
      /** The id of the checkpoint, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: SessionOutput;
    given: { path: Operations["get_sandbox_output"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List active and paused tasks. */
  list_schedules: {
    path: Record<string, never>;
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Show finished tasks as well. */
      all?: boolean;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: ScheduleList;
    given: { query?: Operations["list_schedules"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Schedule a task. */
  create_schedule: {
    path: Record<string, never>;
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewTask;
    reply: ScheduledTask;
    given: { query?: Operations["create_schedule"]["query"]; body: Operations["create_schedule"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return a task. */
  get_schedule: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: ScheduledTask;
    given: { path: Operations["get_schedule"]["path"]; query?: Operations["get_schedule"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Cancel a task for good. */
  cancel_schedule: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: ScheduledTask;
    given: { path: Operations["cancel_schedule"]["path"]; query?: Operations["cancel_schedule"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the finished and skipped occurrences of a task, newest first. */
  list_occurrences: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: number;
    };
    body: undefined;
    reply: OccurrenceList;
    given: { path: Operations["list_occurrences"]["path"]; query?: Operations["list_occurrences"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Pause a task until it is resumed. */
  pause_schedule: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: ScheduledTask;
    given: { path: Operations["pause_schedule"]["path"]; query?: Operations["pause_schedule"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Resume a paused task at its next occurrence. */
  resume_schedule: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: ScheduledTask;
    given: { path: Operations["resume_schedule"]["path"]; query?: Operations["resume_schedule"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Have a worker run the task once as soon as possible. */
  run_schedule: {
    path: {
      /** The id of the task. */
      id: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: ScheduledTask;
    given: { path: Operations["run_schedule"]["path"]; query?: Operations["run_schedule"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List keys with their values, by key. */
  list_state: {
    path: Record<string, never>;
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Only ids that begin with this text. */
      prefix?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: StateEntryList;
    given: { query?: Operations["list_state"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return a value and its version. */
  get_state: {
    path: {
      /** The key of the value, percent-encoded. */
      key: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: StateEntry;
    given: { path: Operations["get_state"]["path"]; query?: Operations["get_state"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Set a key. */
  put_state: {
    path: {
      /** The key of the value, percent-encoded. */
      key: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: NewStateValue;
    reply: StateEntry;
    given: { path: Operations["put_state"]["path"]; query?: Operations["put_state"]["query"]; body: Operations["put_state"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Delete a key. */
  delete_state: {
    path: {
      /** The key of the value, percent-encoded. */
      key: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Delete only this version; a conflict if there is a newer one. */
      if_version?: number;
    };
    body: undefined;
    reply: Empty;
    given: { path: Operations["delete_state"]["path"]; query?: Operations["delete_state"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Add to an integer, without reading it first. */
  add_state: {
    path: {
      /** The key of the value, percent-encoded. */
      key: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: StateAddition;
    reply: StateSum;
    given: { path: Operations["add_state"]["path"]; query?: Operations["add_state"]["query"]; body: Operations["add_state"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the changes of a key, newest first. */
  get_state_history: {
    path: {
      /** The key of the value, percent-encoded. */
      key: string;
    };
    query: {
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: StateHistory;
    given: { path: Operations["get_state_history"]["path"]; query?: Operations["get_state_history"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the size of the project and its growth by day. */
  get_stats: {
    path: Record<string, never>;
    query: {
      /** Read every row instead of estimating what came since the last measurement. */
      exact?: boolean;
    };
    body: undefined;
    reply: Stats;
    given: { query?: Operations["get_stats"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return the growth of the store by day, with the trend. */
  get_growth: {
    path: Record<string, never>;
    query: {
      /** Over how many days the trend is computed. */
      last_days?: number;
    };
    body: undefined;
    reply: Growth;
    given: { query?: Operations["get_growth"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Rehash all content and check every link. Changes nothing but the position of ``since=last``. */
  verify_store: {
    path: Record<string, never>;
    query: {
      /** A sequence number, an age (`36h`), a time, or `last`; unset for everything. */
      since?: string;
      /** How many processes share the work; unset for what suits the size. */
      processes?: number;
    };
    body: undefined;
    reply: Verification;
    given: { query?: Operations["verify_store"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the seals over the history of the project, oldest first. */
  list_seals: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: SealList;
    given: { signal?: AbortSignal | undefined };
  };
  /** Seal what was committed since the last seal. Publish it where the operator cannot rewrite it. */
  make_seal: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: SealRequest;
    reply: NewSeal;
    given: { body: Operations["make_seal"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return a seal with the list of its commits, to publish it. */
  get_seal: {
    path: {
      /** The number of the seal. */
      number: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Seal;
    given: { path: Operations["get_seal"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Check the project against published seals, and say which rows differ. Changes nothing. */
  verify_seals: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: PublishedSeals;
    reply: AuditReport;
    given: { body: Operations["verify_seals"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return the evidence that an event is part of the sealed history. */
  prove_event: {
    path: {
      /** The id of the event. */
      event: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Proof;
    given: { path: Operations["prove_event"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Drop what the rule does not keep, then remove unreachable data. A dry run by default. */
  collect_garbage: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: Sweep;
    reply: Collection;
    given: { body: Operations["collect_garbage"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return the archived days: Parquet files in the blob store, which other programs may read. */
  get_archive: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: Archive;
    given: { signal?: AbortSignal | undefined };
  };
  /** Move what runs recorded on finished days into Parquet files. It stays readable here. */
  archive_days: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: ArchiveOrder;
    reply: Archived;
    given: { body: Operations["archive_days"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Answer a SELECT over all runs of the project, live and archived. Rows, time and memory are bounded. */
  query_runs: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: SqlRequest;
    reply: SqlRows;
    given: { body: Operations["query_runs"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Permanently erase a thread, a namespace or a scope. */
  forget_in_store: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: Selection;
    reply: Forgotten;
    given: { body: Operations["forget_in_store"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Rebuild the roll-ups and the search index. */
  reindex_store: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { signal?: AbortSignal | undefined };
  };
  /** Return the database that the project lives in, and the one that it is moving to. */
  get_cell: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: CellLine;
    given: { signal?: AbortSignal | undefined };
  };
  /** Move the project to another PostgreSQL database while it is used; writers wait under a second. */
  move_project: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: MoveRequest;
    reply: MoveReport;
    given: { body: Operations["move_project"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the keys of this project. */
  list_keys: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: KeyList;
    given: { signal?: AbortSignal | undefined };
  };
  /** Create a key for this project. Once a key exists, every request needs one. */
  create_key: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: NewKeyRequest;
    reply: CreatedKey;
    given: { body: Operations["create_key"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Revoke a key of this project. */
  revoke_key: {
    path: {
      /** The id of the key, which is no secret. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { path: Operations["revoke_key"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Follow the journal by server-sent events, after ``Last-Event-ID`` or ``after``, or from now on. */
  live: {
    path: Record<string, never>;
    query: {
      /** Start after this sequence number; unset for new events only. `Last-Event-ID` takes precedence. */
      after?: number;
      /** Only this run. */
      run?: string;
      /** Only this thread. */
      thread?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Only what this agent did. */
      agent?: string;
      /** Only these kinds, such as `span.tool`, or `span` for all spans. Repeat it, or use commas. */
      kinds?: string[];
      /** `journal` for rows of the journal, `timeline` for events as in `/runs/{id}/timeline`. */
      shape?: "journal" | "timeline";
      /** `all` for more than the five usual types of event. */
      types?: "all";
    };
    body: undefined;
    reply: LiveEvent;
    given: { query?: Operations["live"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List budgets, with the usage of those of the store, and of the given run, agent and thread. */
  list_budgets: {
    path: Record<string, never>;
    query: {
      /** Return the usage of this run. */
      run?: string;
      /** Return the usage of this agent. */
      agent?: string;
      /** Return the usage of this thread. */
      thread?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
    };
    body: undefined;
    reply: BudgetList;
    given: { query?: Operations["list_budgets"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Create or replace a budget. Everything that records into the project applies it within seconds. */
  set_budget: {
    path: {
      /** The name of the budget. */
      name: string;
    };
    query: Record<string, never>;
    body: NewBudget;
    reply: BudgetLine;
    given: { path: Operations["set_budget"]["path"]; body: Operations["set_budget"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Remove a budget. */
  remove_budget: {
    path: {
      /** The name of the budget. */
      name: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { path: Operations["remove_budget"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List alerts, newest first. */
  list_alerts: {
    path: Record<string, never>;
    query: {
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: AlertList;
    given: { query?: Operations["list_alerts"]["query"]; signal?: AbortSignal | undefined };
  };
  /** List the rules about runs. */
  list_rules: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: RuleList;
    given: { signal?: AbortSignal | undefined };
  };
  /** Create or replace a rule, which applies to runs that end from now on. */
  set_rule: {
    path: {
      /** The name of the rule or webhook. */
      name: string;
    };
    query: Record<string, never>;
    body: NewRule;
    reply: AlertRule;
    given: { path: Operations["set_rule"]["path"]; body: Operations["set_rule"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Remove a rule. */
  remove_rule: {
    path: {
      /** The name of the rule or webhook. */
      name: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { path: Operations["remove_rule"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List webhooks. */
  list_webhooks: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: WebhookList;
    given: { signal?: AbortSignal | undefined };
  };
  /** Send alerts to a URL from now on, or change the URL of a webhook. */
  set_webhook: {
    path: {
      /** The name of the rule or webhook. */
      name: string;
    };
    query: Record<string, never>;
    body: NewWebhook;
    reply: Webhook;
    given: { path: Operations["set_webhook"]["path"]; body: Operations["set_webhook"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Remove a webhook. */
  remove_webhook: {
    path: {
      /** The name of the rule or webhook. */
      name: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { path: Operations["remove_webhook"]["path"]; signal?: AbortSignal | undefined };
  };
  /** List effects, newest first; with ``status=unknown`` those that wait for a decision. */
  list_effects: {
    path: Record<string, never>;
    query: {
      /** Only this thread. */
      thread?: string;
      /** The namespace of a user or project within the store; empty for none. */
      namespace?: string;
      /** Only this run. */
      run?: string;
      /** Only effects that stand so. */
      status?: "abandoned" | "done" | "failed" | "planned" | "started" | "unknown";
      /** Only effects that may have happened since this checkpoint of the thread. */
      checkpoint?: string;
      /** The most that a page returns. */
      limit?: number;
      /** The `next_cursor` of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: EffectList;
    given: { query?: Operations["list_effects"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Return an effect: the call, its attempts, and its outcome. */
  get_effect: {
    path: {
      /** The id of the effect. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: EffectInfo;
    given: { path: Operations["get_effect"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Return what happened since a call was asked for: on the timeline of its thread, and in its files. */
  get_effect_changes: {
    path: {
      /** The id of the effect. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: DiffChanges;
    given: { path: Operations["get_effect_changes"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Decide about an unknown effect; its thread goes on with the decision when it is resumed. */
  decide_effect: {
    path: {
      /** The id of the effect. */
      id: string;
    };
    query: Record<string, never>;
    body: EffectDecision;
    reply: EffectInfo;
    given: { path: Operations["decide_effect"]["path"]; body: Operations["decide_effect"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the questions that wait for an answer, or those that were answered. */
  list_approvals: {
    path: Record<string, never>;
    query: {
      /** `open` ones, `answered` ones whose thread has not gone on, or `closed` ones. */
      status?: "answered" | "closed" | "open";
      /** Only threads of this namespace; unset for all. */
      namespace?: string;
      /** Only this thread. */
      thread?: string;
      /** Only what is about this tool. */
      tool?: string;
      /** Only questions that the caller may answer now. */
      mine?: boolean;
      /** The most that a page returns. */
      limit?: number;
      /** The last id of the previous page; unset for the first page. */
      cursor?: string;
    };
    body: undefined;
    reply: ApprovalList;
    given: { query?: Operations["list_approvals"]["query"]; signal?: AbortSignal | undefined };
  };
  /** Ask whether a call may be made. Poll the question, or follow the journal, for the answer. */
  request_approval: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: ApprovalRequest;
    reply: ApprovalInfo;
    given: { body: Operations["request_approval"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Return a question: what is asked, who may answer until when, and the votes so far. */
  get_approval: {
    path: {
      /** The id of the question, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: ApprovalInfo;
    given: { path: Operations["get_approval"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Return what changed in the files since the run began that asks. */
  get_approval_changes: {
    path: {
      /** The id of the question, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: ApprovalChanges;
    given: { path: Operations["get_approval_changes"]["path"]; signal?: AbortSignal | undefined };
  };
  /** Answer a question. Of two racing answers, one counts; the other gets 409, and who was faster. */
  answer_approval: {
    path: {
      /** The id of the question, or a unique beginning of it. */
      id: string;
    };
    query: Record<string, never>;
    body: ApprovalAnswer;
    reply: ApprovalInfo;
    given: { path: Operations["answer_approval"]["path"]; body: Operations["answer_approval"]["body"]; signal?: AbortSignal | undefined };
  };
  /** List the rules about who may answer. */
  list_approval_rules: {
    path: Record<string, never>;
    query: Record<string, never>;
    body: undefined;
    reply: ApprovalRules;
    given: { signal?: AbortSignal | undefined };
  };
  /** Set or replace a rule; it applies to open questions, too. */
  set_approval_rule: {
    path: {
      /** The name of the rule. */
      name: string;
    };
    query: Record<string, never>;
    body: NewApprovalRule;
    reply: ApprovalRule;
    given: { path: Operations["set_approval_rule"]["path"]; body: Operations["set_approval_rule"]["body"]; signal?: AbortSignal | undefined };
  };
  /** Remove a rule. */
  remove_approval_rule: {
    path: {
      /** The name of the rule. */
      name: string;
    };
    query: Record<string, never>;
    body: undefined;
    reply: Empty;
    given: { path: Operations["remove_approval_rule"]["path"]; signal?: AbortSignal | undefined };
  };
}

/** Method and path of every operation. */
export const OPERATIONS = {
  list_runs: ["GET", "/runs"],
  get_run: ["GET", "/runs/{id}"],
  get_tree: ["GET", "/runs/{id}/tree"],
  cancel_run: ["POST", "/runs/{id}/cancel"],
  list_spans: ["GET", "/runs/{id}/spans"],
  get_span: ["GET", "/runs/{id}/spans/{span}"],
  compare_runs: ["GET", "/runs/{id}/compare/{other}"],
  compare_agents: ["GET", "/compare/agents"],
  replay: ["GET", "/runs/{id}/replay"],
  get_timeline: ["GET", "/runs/{id}/timeline"],
  get_thread_timeline: ["GET", "/threads/{id}/timeline"],
  search: ["GET", "/search"],
  get_cost: ["GET", "/runs/{id}/cost"],
  get_costs: ["GET", "/cost"],
  get_performance: ["GET", "/performance"],
  list_steps: ["GET", "/runs/{id}/steps"],
  get_step_count: ["GET", "/runs/{id}/steps/count"],
  find_next_step: ["GET", "/runs/{id}/steps/find"],
  get_step: ["GET", "/runs/{id}/steps/{number}"],
  get_reruns: ["GET", "/runs/{id}/reruns"],
  start_rerun: ["POST", "/runs/{id}/reruns"],
  cancel_rerun: ["DELETE", "/runs/{id}/reruns/{job}"],
  search_everything: ["GET", "/search/everything"],
  list_threads: ["GET", "/threads"],
  get_thread: ["GET", "/threads/{id}"],
  delete_thread: ["DELETE", "/threads/{id}"],
  get_history: ["GET", "/threads/{id}/history"],
  get_lineage: ["GET", "/threads/{id}/lineage"],
  get_checkpoint: ["GET", "/threads/{id}/checkpoints/{checkpoint}"],
  diff_threads: ["GET", "/threads/{id}/diff"],
  save_checkpoint: ["POST", "/threads/{id}/checkpoints"],
  fork_thread: ["POST", "/threads/{id}/fork"],
  rewind_thread: ["POST", "/threads/{id}/rewind"],
  resume_thread: ["POST", "/threads/{id}/resume"],
  get_view: ["GET", "/threads/{id}/view"],
  list_compactions: ["GET", "/threads/{id}/compactions"],
  compact_thread: ["POST", "/threads/{id}/compactions"],
  uncompact_thread: ["DELETE", "/threads/{id}/compactions"],
  get_partial: ["GET", "/threads/{id}/partial"],
  discard_partial: ["DELETE", "/threads/{id}/partial"],
  get_transcript: ["GET", "/threads/{id}/transcript"],
  append_to_transcript: ["POST", "/threads/{id}/transcript"],
  list_memory: ["GET", "/memory"],
  list_memory_namespaces: ["GET", "/memory/namespaces"],
  search_memory: ["GET", "/memory/search"],
  get_memory: ["GET", "/memory/{id}"],
  put_memory: ["PUT", "/memory/{id}"],
  delete_memory: ["DELETE", "/memory/{id}"],
  forget_memory: ["POST", "/memory/{id}/forget"],
  get_memory_history: ["GET", "/memory/{id}/history"],
  diff_memory: ["GET", "/memory/{id}/diff"],
  restore_memory: ["POST", "/memory/{id}/restore"],
  list_snapshots: ["GET", "/snapshots"],
  diff_snapshots: ["GET", "/snapshots/diff"],
  list_files: ["GET", "/snapshots/{id}/ls"],
  get_file: ["GET", "/snapshots/{id}/cat"],
  check_snapshot: ["GET", "/snapshots/{id}/check"],
  find_secrets: ["GET", "/snapshots/{id}/secrets"],
  list_sandbox_checkpoints: ["GET", "/sandboxes/checkpoints"],
  get_sandbox_checkpoint: ["GET", "/sandboxes/checkpoints/{id}"],
  get_sandbox_output: ["GET", "/sandboxes/checkpoints/{id}/output"],
  list_schedules: ["GET", "/schedules"],
  create_schedule: ["POST", "/schedules"],
  get_schedule: ["GET", "/schedules/{id}"],
  cancel_schedule: ["DELETE", "/schedules/{id}"],
  list_occurrences: ["GET", "/schedules/{id}/occurrences"],
  pause_schedule: ["POST", "/schedules/{id}/pause"],
  resume_schedule: ["POST", "/schedules/{id}/resume"],
  run_schedule: ["POST", "/schedules/{id}/run"],
  list_state: ["GET", "/state"],
  get_state: ["GET", "/state/{key}"],
  put_state: ["PUT", "/state/{key}"],
  delete_state: ["DELETE", "/state/{key}"],
  add_state: ["POST", "/state/{key}/add"],
  get_state_history: ["GET", "/state/{key}/history"],
  get_stats: ["GET", "/store/stats"],
  get_growth: ["GET", "/store/growth"],
  verify_store: ["POST", "/store/verify"],
  list_seals: ["GET", "/store/seals"],
  make_seal: ["POST", "/store/seals"],
  get_seal: ["GET", "/store/seals/{number}"],
  verify_seals: ["POST", "/store/seals/verify"],
  prove_event: ["GET", "/store/proofs/{event}"],
  collect_garbage: ["POST", "/store/gc"],
  get_archive: ["GET", "/store/archive"],
  archive_days: ["POST", "/store/archive"],
  query_runs: ["POST", "/store/query"],
  forget_in_store: ["POST", "/store/forget"],
  reindex_store: ["POST", "/store/reindex"],
  get_cell: ["GET", "/store/cell"],
  move_project: ["POST", "/store/move"],
  list_keys: ["GET", "/keys"],
  create_key: ["POST", "/keys"],
  revoke_key: ["DELETE", "/keys/{id}"],
  live: ["GET", "/live"],
  list_budgets: ["GET", "/budgets"],
  set_budget: ["PUT", "/budgets/{name}"],
  remove_budget: ["DELETE", "/budgets/{name}"],
  list_alerts: ["GET", "/alerts"],
  list_rules: ["GET", "/alerts/rules"],
  set_rule: ["PUT", "/alerts/rules/{name}"],
  remove_rule: ["DELETE", "/alerts/rules/{name}"],
  list_webhooks: ["GET", "/alerts/webhooks"],
  set_webhook: ["PUT", "/alerts/webhooks/{name}"],
  remove_webhook: ["DELETE", "/alerts/webhooks/{name}"],
  list_effects: ["GET", "/effects"],
  get_effect: ["GET", "/effects/{id}"],
  get_effect_changes: ["GET", "/effects/{id}/changes"],
  decide_effect: ["POST", "/effects/{id}/decision"],
  list_approvals: ["GET", "/approvals"],
  request_approval: ["POST", "/approvals"],
  get_approval: ["GET", "/approvals/{id}"],
  get_approval_changes: ["GET", "/approvals/{id}/changes"],
  answer_approval: ["POST", "/approvals/{id}/answer"],
  list_approval_rules: ["GET", "/approval-rules"],
  set_approval_rule: ["PUT", "/approval-rules/{name}"],
  remove_approval_rule: ["DELETE", "/approval-rules/{name}"],
} as const satisfies Record<keyof Operations, readonly [string, string]>;

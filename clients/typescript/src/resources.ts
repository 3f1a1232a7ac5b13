// Shortcuts for threads, runs and memory; everything else is `Treering.call`.
import type {
  CheckpointContent,
  CheckpointSummary,
  Json,
  MemoryDocument,
  MemoryHit,
  NewCheckpoint,
  NewFork,
  NewMemoryDocument,
  Operations,
  RunLine,
  RunRecord,
  SpanContent,
  ThreadOverview,
} from "./api.js";
import type { Treering } from "./client.js";
import { TreeringError } from "./errors.js";

type Query<Name extends keyof Operations> = Omit<Operations[Name]["query"], "cursor">;

type Addition = Pick<NewCheckpoint, "state" | "metadata" | "note" | "tags" | "expect_head">;

/** The threads of a project. */
export class Threads {
  constructor(private readonly client: Treering) {}

  /** A thread by its id; its first checkpoint creates it. */
  get(id: string, namespace = ""): Thread {
    return new Thread(this.client, id, namespace);
  }

  /** Iterate over threads, last changed first. */
  async *list(query: Query<"list_threads"> = {}): AsyncGenerator<ThreadOverview, void, undefined> {
    for await (const page of this.client.pages<"list_threads">("list_threads", { query })) yield* page.threads;
  }
}

/** A conversation and its state as a line of checkpoints. */
export class Thread {
  constructor(
    private readonly client: Treering,
    readonly id: string,
    readonly namespace: string,
  ) {}

  /** The newest checkpoint with its messages and state; `last` limits the messages. */
  load(options: { last?: number; readable?: boolean } = {}): Promise<CheckpointContent> {
    return this.client.call("get_thread", { path: this.#path, query: { ...this.#query, ...options } });
  }

  /** Like `load`, but `null` for a thread that was never saved. */
  async find(options: { last?: number; readable?: boolean } = {}): Promise<CheckpointContent | null> {
    try {
      return await this.load(options);
    } catch (error) {
      if (error instanceof TreeringError && error.type === "NotFound") return null;
      throw error;
    }
  }

  /** Save one checkpoint with further messages, and optionally changed state. */
  append(messages: Json[], rest: Addition = {}): Promise<CheckpointSummary> {
    return this.save({ ...rest, append: messages });
  }

  /** Save a checkpoint. With `expect_head`, a thread that moved meanwhile is a `Conflict`. */
  save(checkpoint: NewCheckpoint): Promise<CheckpointSummary> {
    return this.client.call("save_checkpoint", { path: this.#path, query: this.#query, body: checkpoint });
  }

  /** Start a new thread at a checkpoint of this one. Both share their past. */
  async fork(newId: string, rest: Omit<NewFork, "new_id"> = {}): Promise<Thread> {
    const body: NewFork = { ...rest, new_id: newId };
    await this.client.call("fork_thread", { path: this.#path, query: this.#query, body });
    return new Thread(this.client, newId, rest.namespace ?? this.namespace);
  }

  /** Move the head back to an earlier checkpoint: an id, `12` for a step, `~1` for one before the head. */
  rewind(to: string): Promise<Operations["rewind_thread"]["reply"]> {
    return this.client.call("rewind_thread", { path: this.#path, query: this.#query, body: { to } });
  }

  /** Answer the pending interrupt of the thread. */
  resume(answer: Operations["resume_thread"]["body"]): Promise<Operations["resume_thread"]["reply"]> {
    return this.client.call("resume_thread", { path: this.#path, query: this.#query, body: answer });
  }

  /** Iterate over the checkpoints, newest first. */
  async *history(options: { tag?: string[]; everything?: boolean } = {}): AsyncGenerator<CheckpointSummary, void, undefined> {
    const query = { ...this.#query, ...options };
    const pages = this.client.pages<"get_history">("get_history", { path: this.#path, query });
    for await (const page of pages) yield* page.checkpoints;
  }

  /** Delete the thread, with its transcript. */
  async delete(options: { cascade?: boolean } = {}): Promise<void> {
    await this.client.call("delete_thread", { path: this.#path, query: { ...this.#query, ...options } });
  }

  get #path(): { id: string } {
    return { id: this.id };
  }

  get #query(): { namespace?: string } {
    return this.namespace ? { namespace: this.namespace } : {};
  }
}

/** The recorded runs of a project. Record them with OpenTelemetry (see `Treering.otlp`). */
export class Runs {
  constructor(private readonly client: Treering) {}

  /** A run with its status, tokens and cost. */
  get(id: string): Promise<RunLine> {
    return this.client.call("get_run", { path: { id } });
  }

  /** Iterate over runs, newest first. */
  async *list(query: Query<"list_runs"> = {}): AsyncGenerator<RunLine, void, undefined> {
    for await (const page of this.client.pages<"list_runs">("list_runs", { query })) yield* page.runs;
  }

  /** Iterate over the spans and messages of a run, by start, without their content. */
  async *records(id: string): AsyncGenerator<RunRecord, void, undefined> {
    for await (const page of this.client.pages<"list_spans">("list_spans", { path: { id } })) yield* page.records;
  }

  /** A span or message with its input and output. */
  span(id: string, span: string, options: { readable?: boolean } = {}): Promise<SpanContent> {
    return this.client.call("get_span", { path: { id, span }, query: options });
  }

  /** The tokens and cost of a run, by agent. */
  cost(id: string): Promise<Operations["get_cost"]["reply"]> {
    return this.client.call("get_cost", { path: { id } });
  }
}

/** What agents remember: versioned documents by id, with search. */
export class Memory {
  constructor(
    private readonly client: Treering,
    readonly namespace = "",
  ) {}

  /** The memory of a user or project within the store. */
  in(namespace: string): Memory {
    return new Memory(this.client, namespace);
  }

  /** Save a whole document. With `if_version`, a document that changed meanwhile is a `Conflict`. */
  save(id: string, content: string, rest: Omit<NewMemoryDocument, "content"> = {}): Promise<MemoryDocument> {
    const body: NewMemoryDocument = { ...rest, content };
    return this.client.call("put_memory", { path: { id }, query: this.#query, body });
  }

  /** A document, in its newest version or an older one. */
  get(id: string, options: { version?: number } = {}): Promise<MemoryDocument> {
    return this.client.call("get_memory", { path: { id }, query: { ...this.#query, ...options } });
  }

  /** Iterate over documents, by id. */
  async *list(query: Omit<Query<"list_memory">, "namespace"> = {}): AsyncGenerator<MemoryDocument, void, undefined> {
    const pages = this.client.pages<"list_memory">("list_memory", { query: { ...this.#query, ...query } });
    for await (const page of pages) yield* page.documents;
  }

  /** Search, best match first. */
  async search(q: string, rest: Omit<Operations["search_memory"]["query"], "q" | "namespace"> = {}): Promise<MemoryHit[]> {
    const found = await this.client.call("search_memory", { query: { ...this.#query, ...rest, q } });
    return found.hits;
  }

  /** Delete a document; its versions stay in its history. */
  async delete(id: string, options: { if_version?: number } = {}): Promise<void> {
    await this.client.call("delete_memory", { path: { id }, query: { ...this.#query, ...options } });
  }

  get #query(): { namespace?: string } {
    return this.namespace ? { namespace: this.namespace } : {};
  }
}

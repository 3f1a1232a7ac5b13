// The client: one typed method, `call`, for every operation of the server, and shortcuts for the common ones.
import { OPERATIONS, type Operations } from "./api.js";
import { TreeringError, Unreachable, errorOf } from "./errors.js";
import { type FollowOptions, follow } from "./live.js";
import { Memory, Runs, Threads } from "./resources.js";
import type { LiveEvent } from "./api.js";

export interface ClientOptions {
  /** The URL of the server; `http://127.0.0.1:8787` for `treering serve` on this machine. */
  url?: string;
  /** A key of the server (`treering keys create`). It determines the project. */
  apiKey?: string | undefined;
  /** How often a call that may be repeated is tried again. */
  retries?: number;
  /** Instead of the global `fetch`. */
  fetch?: typeof fetch;
}

/** What a call of an operation takes: the parts of its path, its query and its body. */
export type Given<Name extends keyof Operations> = Operations[Name]["given"];

interface Parts {
  path?: Record<string, string>;
  query?: Record<string, unknown>;
  body?: unknown;
  signal?: AbortSignal;
}

type Paged<Name extends keyof Operations> = Operations[Name]["query"] extends { cursor?: string } ? Name : never;

const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 5_000;

/** A treering server, as one project sees it. */
export class Treering {
  readonly url: URL;
  readonly threads = new Threads(this);
  readonly runs = new Runs(this);
  readonly memory = new Memory(this);
  readonly #apiKey: string | undefined;
  readonly #retries: number;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions = {}) {
    const given = options.url ?? "http://127.0.0.1:8787";
    this.url = new URL(given.endsWith("/") ? given : `${given}/`);
    this.#apiKey = options.apiKey;
    this.#retries = options.retries ?? 3;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Where OpenTelemetry exporters send traces (OTLP over HTTP): what they record becomes runs. */
  get otlp(): { url: string; headers: Record<string, string> } {
    return { url: new URL("v1/traces", this.url).href, headers: this.#headers() };
  }

  /**
   * Call an operation of the server by its id.
   *
   * Calls that only read, and those that replace or delete something, are repeated if the server cannot be
   * reached. A call that adds something is not: it may have happened.
   */
  async call<Name extends keyof Operations>(name: Name, given: Given<Name>): Promise<Operations[Name]["reply"]> {
    const parts = given as Parts;
    const [method] = OPERATIONS[name];
    const answer = await this.#send(name, parts, method !== "POST");
    if (answer.status === 204) return undefined as Operations[Name]["reply"];
    return (await answer.json()) as Operations[Name]["reply"];
  }

  /** Iterate over the pages of a list. */
  async *pages<Name extends keyof Operations>(
    name: Paged<Name>,
    given: Given<Name>,
  ): AsyncGenerator<Operations[Name]["reply"], void, undefined> {
    let cursor: string | null = null;
    do {
      const { query, ...rest } = given as Parts;
      const next: Parts = { ...rest, query: { ...query, ...(cursor === null ? {} : { cursor }) } };
      const page: Operations[Name]["reply"] = await this.call<Name>(name, next as Given<Name>);
      yield page;
      cursor = (page as { next_cursor: string | null }).next_cursor;
    } while (cursor !== null);
  }

  /**
   * Follow what any process records, from now on or after a sequence number.
   *
   * A connection that breaks is opened again where it ended: no event is missed, and none comes twice.
   */
  live(options: FollowOptions = {}): AsyncGenerator<LiveEvent, void, undefined> {
    return follow(options, (query, lastId, signal) => {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (lastId !== null) headers["last-event-id"] = lastId;
      return this.#fetch(this.#locate("/live", query), { headers: { ...this.#headers(), ...headers }, signal });
    });
  }

  async #send(name: keyof Operations, parts: Parts, isRepeatable: boolean): Promise<Response> {
    const [method, path] = OPERATIONS[name];
    const filled = path.replace(/\{(\w+)\}/g, (_, part: string) => encodeURIComponent(parts.path?.[part] ?? ""));
    const url = this.#locate(filled, parts.query ?? {});
    const headers = this.#headers();
    if (parts.body !== undefined) headers["content-type"] = "application/json";
    const body = parts.body === undefined ? null : JSON.stringify(parts.body);
    const signal = parts.signal ?? null;
    for (let tries = 0; ; tries += 1) {
      const outcome = await this.#fetch(url, { method, headers, body, signal }).then(
        async (answer) => (answer.ok ? answer : { failed: await errorOf(answer), answer }),
        (cause: unknown) => ({ failed: new Unreachable(url, cause), answer: null }),
      );
      if (outcome instanceof Response) return outcome;
      signal?.throwIfAborted();
      // A limited call (429) was refused before it did anything.
      const isTransient =
        outcome.failed instanceof TreeringError
          ? outcome.failed.status === 429 || (outcome.failed.retryable && isRepeatable)
          : isRepeatable;
      if (!isTransient || tries >= this.#retries) throw outcome.failed;
      const asked = Number(outcome.answer?.headers.get("retry-after") ?? 0) * 1000;
      await pause(Math.max(asked, Math.min(FIRST_WAIT_MS * 2 ** tries, LONGEST_WAIT_MS)), signal);
    }
  }

  #headers(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { authorization: `Bearer ${this.#apiKey}` };
  }

  #locate(path: string, query: Record<string, unknown>): URL {
    const url = new URL(path.slice(1), this.url);
    for (const [name, value] of Object.entries(query)) {
      if (value === undefined || value === null) continue;
      for (const each of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(each));
    }
    return url;
  }
}

/** Wait; reject at once if the signal is aborted. */
export async function pause(milliseconds: number, signal: AbortSignal | null): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((done, fail) => {
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      done();
    }, milliseconds);
    const stop = () => {
      clearTimeout(timer);
      fail(signal?.reason as Error);
    };
    signal?.addEventListener("abort", stop, { once: true });
  });
}

// Live events: server-sent events over fetch, resumed with Last-Event-ID when a connection breaks.
import type { LiveEvent, Operations } from "./api.js";
import { pause } from "./client.js";
import { TreeringError, errorOf } from "./errors.js";

/** Which events to follow. Unset filters do not filter. */
export type FollowOptions = Omit<Operations["live"]["query"], "shape" | "types"> & {
  signal?: AbortSignal | undefined;
  /** Called when the stream is connected (again), with the sequence number it resumes after, if any. */
  onConnect?: (after: string | null) => void;
};

type Connect = (query: Record<string, unknown>, lastId: string | null, signal: AbortSignal) => Promise<Response>;

interface Block {
  id: string | null;
  event: string;
  data: string;
}

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5_000;
/** The server sends something at least every 15 seconds; a connection that is silent for longer is dead. */
const SILENCE_MS = 45_000;

export async function* follow(options: FollowOptions, connect: Connect): AsyncGenerator<LiveEvent, void, undefined> {
  const { signal, onConnect, ...query } = options;
  let lastId: string | null = null;
  let wait = FIRST_WAIT_MS;
  for (;;) {
    const connection = new AbortController();
    const stop = () => connection.abort(signal?.reason);
    signal?.addEventListener("abort", stop, { once: true });
    try {
      signal?.throwIfAborted();
      const answer = await connect(query, lastId, connection.signal);
      if (!answer.ok || answer.body === null) throw await errorOf(answer);
      onConnect?.(lastId);
      wait = FIRST_WAIT_MS;
      for await (const block of blocks(answer.body, connection)) {
        if (block.event === "revoked") throw revoked(block.data);
        if (block.id !== null) lastId = block.id;
        if (block.event === "" && block.data) yield JSON.parse(block.data) as LiveEvent;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof TreeringError && !error.retryable) throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
      connection.abort();
    }
    await pause(wait, signal ?? null);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

/** Yield the blocks of a stream of server-sent events until it ends, breaks or is silent for too long. */
async function* blocks(body: ReadableStream<Uint8Array>, connection: AbortController): AsyncGenerator<Block> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => connection.abort(new Error("the stream is silent")), SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const whole = text.split(/\r?\n\r?\n/);
    text = whole.pop() ?? "";
    for (const each of whole) yield parse(each);
  }
}

function parse(text: string): Block {
  const block: Block = { id: null, event: "", data: "" };
  const data: string[] = [];
  for (const line of text.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "data") data.push(value);
    else if (field === "id") block.id = value;
    else if (field === "event") block.event = value;
  }
  return { ...block, data: data.join("\n") };
}

function revoked(data: string): TreeringError {
  const { reason } = JSON.parse(data) as { reason: string };
  return new TreeringError({ type: "Unauthorized", title: "", status: 401, detail: reason, retryable: false });
}

// Run by tests/server/test_typescript.py against a real server: TREERING_TEST_URL, and TREERING_TEST_KEY if it has keys.
import assert from "node:assert/strict";
import { type Socket, connect, createServer } from "node:net";
import { after, before, test } from "node:test";

import { type LiveEvent, Treering, TreeringError, Unreachable } from "treering";

const url = process.env["TREERING_TEST_URL"] ?? "";
const apiKey = process.env["TREERING_TEST_KEY"];
const client = new Treering({ url, apiKey });

/** A relay in front of the server that can cut all connections, or refuse new ones. */
class Relay {
  readonly #sockets = new Set<Socket>();
  readonly #server = createServer((inner) => {
    const { hostname, port } = new URL(url);
    const outer = connect(Number(port), hostname);
    this.connections += 1;
    for (const [one, other] of [[inner, outer], [outer, inner]] as const) {
      this.#sockets.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => other.destroy());
      one.pipe(other);
    }
  });
  connections = 0;
  url = "";

  async open(): Promise<void> {
    await new Promise<void>((done) => this.#server.listen(0, "127.0.0.1", done));
    const address = this.#server.address();
    assert(address !== null && typeof address === "object");
    this.url = `http://127.0.0.1:${address.port}`;
  }

  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }

  close(): void {
    this.cut();
    this.#server.close();
  }
}

const relay = new Relay();
before(() => relay.open());
after(() => relay.close());

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const each of items) found.push(each);
  return found;
}

function span(trace: string, id: string, attributes: Record<string, string>): object {
  const at = BigInt(Date.now()) * 1_000_000n;
  return {
    traceId: trace,
    spanId: id,
    name: "answer",
    kind: 1,
    startTimeUnixNano: String(at),
    endTimeUnixNano: String(at + 1_000_000n),
    attributes: Object.entries(attributes).map(([key, stringValue]) => ({ key, value: { stringValue } })),
  };
}

async function record(trace: string, thread: string): Promise<void> {
  const { url: traces, headers } = client.otlp;
  const attributes = { "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner", "gen_ai.conversation.id": thread };
  const spans = [span(trace, trace.slice(0, 16), attributes)];
  const body = JSON.stringify({ resourceSpans: [{ scopeSpans: [{ spans }] }] });
  const sent = await fetch(traces, { method: "POST", headers: { ...headers, "content-type": "application/json" }, body });
  assert.equal(sent.status, 200);
}

test("a thread is saved, loaded, forked and rewound", async () => {
  const thread = client.threads.get("ts/alice & bob?");
  assert.equal(await thread.find(), null);
  await thread.append([{ role: "user", content: "Where is my refund?" }], { state: { tries: 1 } });
  const second = await thread.append([{ role: "assistant", content: "On its way. ✓" }]);
  const loaded = await thread.load({ readable: true });
  assert.equal(loaded.checkpoint.id, second.id);
  assert.deepEqual(loaded.messages.at(-1), { role: "assistant", content: "On its way. ✓" });
  assert.deepEqual(loaded.state, { tries: 1 });
  assert.equal(loaded.readable?.at(0)?.role, "user");
  assert.equal((await thread.load({ last: 1 })).messages.length, 1);

  const fork = await thread.fork("ts/alice-bolder");
  await fork.append([{ role: "user", content: "again" }]);
  assert.equal((await fork.load()).messages.length, 3);
  assert.equal((await thread.load()).messages.length, 2);

  const history = await all(thread.history());
  assert.equal(history.length, 2);
  await thread.rewind(history.at(-1)?.id ?? "");
  assert.equal((await thread.load()).messages.length, 1);
  const ids = (await all(client.threads.list({ prefix: "ts/" }))).map((each) => each.id);
  assert.deepEqual(ids.sort(), ["ts/alice & bob?", "ts/alice-bolder"]);
});

test("a write that lost is a conflict, and says which", async () => {
  const thread = client.threads.get("ts/raced");
  const first = await thread.append(["one"]);
  await thread.append(["two"], { expect_head: first.id });
  await assert.rejects(thread.append(["three"], { expect_head: first.id }), (error: unknown) => {
    assert(error instanceof TreeringError);
    assert.equal(error.status, 409);
    assert.match(error.type, /Conflict|RefMoved/);
    return true;
  });
});

test("an interrupt is answered", async () => {
  const thread = client.threads.get("ts/waiting");
  await thread.save({ messages: ["pay?"], pending_interrupt: { id: "i1", payload: { tool: "pay" } } });
  await thread.resume({ decision: "approve" });
  assert.equal((await thread.load()).checkpoint.pending_interrupt ?? null, null);
});

test("lists are read to their end, whatever the page", async () => {
  for (let number = 0; number < 7; number += 1) await client.memory.in("ts").save(`note-${number}`, `number ${number}`);
  const found = await all(client.memory.in("ts").list({ limit: 3 }));
  assert.deepEqual(found.map((each) => each.id), [0, 1, 2, 3, 4, 5, 6].map((number) => `note-${number}`));
});

test("memory is versioned and searched", async () => {
  const memory = client.memory.in("ts-alice");
  const first = await memory.save("taste", "Alice likes green tea", { tags: ["drinks"] });
  await memory.save("taste", "Alice likes black tea", { if_version: first.version ?? null });
  assert.equal((await memory.get("taste", { version: 1 })).content, "Alice likes green tea");
  const [hit] = await memory.search("tea");
  assert.equal(hit?.document.id, "taste");
  await memory.delete("taste");
  await assert.rejects(memory.get("taste"), { name: "TreeringError", type: "NotFound", status: 404 });
});

test("runs that OpenTelemetry recorded are listed with their spans and cost", async () => {
  const trace = "ab".repeat(16);
  await record(trace, "ts/traced");
  const [run] = await all(client.runs.list({ thread: "ts/traced" }));
  assert(run !== undefined);
  assert.equal(run.agent, "planner");
  assert.equal((await client.runs.get(run.id)).status, "ok");
  const records = await all(client.runs.records(run.id));
  assert(records.some((each) => each.name === "answer" || each.agent === "planner"));
  await client.runs.cost(run.id);
});

test("a live stream goes on where it broke, without a gap or a repetition", async () => {
  const stop = new AbortController();
  let connected = (): void => undefined;
  const isConnected = new Promise<void>((done) => (connected = done));
  const seen: LiveEvent[] = [];
  let wake = (): void => undefined;
  const arrived = async (count: number): Promise<void> => {
    while (seen.length < count) await new Promise<void>((done) => (wake = done));
  };
  const following = (async () => {
    const through = new Treering({ url: relay.url, apiKey });
    for await (const event of through.live({ thread: "ts/live", signal: stop.signal, onConnect: connected })) {
      seen.push(event);
      wake();
    }
  })();
  await isConnected;
  const traces = Array.from({ length: 4 }, (_, number) => `c${number}`.repeat(16));
  await record(traces[0] ?? "", "ts/live");
  await arrived(1);
  const before = relay.connections;
  relay.cut();
  // What happens while nobody is connected comes after the reconnection.
  await record(traces[1] ?? "", "ts/live");
  const until = async (trace: string): Promise<void> => {
    for (let count = seen.length; !seen.some((each) => each.run?.includes(trace)); count += 1) await arrived(count + 1);
  };
  await until(traces[1] ?? "");
  relay.cut();
  await record(traces[2] ?? "", "ts/live");
  await until(traces[2] ?? "");
  assert(relay.connections > before);
  const order = seen.map((each) => each.seq);
  assert.deepEqual(order, [...new Set(order)].sort((one, other) => one - other));
  stop.abort();
  await assert.rejects(following, { name: "AbortError" });
});

test("a call that reads is repeated when the connection breaks, and gives up in the end", async () => {
  let failures = 2;
  const flaky: typeof fetch = (input, init) => {
    failures -= 1;
    return failures >= 0 ? Promise.reject(new TypeError("connection reset")) : fetch(input, init);
  };
  const stubborn = new Treering({ url, apiKey, fetch: flaky });
  await all(stubborn.threads.list());
  failures = 1;
  await assert.rejects(stubborn.threads.get("ts/never").append(["said"]), Unreachable);
  assert.equal(await client.threads.get("ts/never").find(), null);
  const nowhere = new Treering({ url: "http://127.0.0.1:9", retries: 0 });
  await assert.rejects(nowhere.runs.get("x"), { name: "Unreachable" });
});

test("errors of the server have their type", async () => {
  await assert.rejects(client.runs.get("no-such-run"), { type: "NotFound", retryable: false });
  await assert.rejects(client.call("list_runs", { query: { limit: 0 } }), { status: 422 });
});

test("a key is required where the server has keys", { skip: apiKey === undefined }, async () => {
  await assert.rejects(all(new Treering({ url }).threads.list()), { type: "Unauthorized", status: 401 });
  await assert.rejects(new Treering({ url, apiKey: "wrong" }).live().next(), { type: "Unauthorized" });
});

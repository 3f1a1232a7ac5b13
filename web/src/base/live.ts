// Live updates: one stream of the server's events, resumed after interruptions.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { epoch, headers, lock, locked, reachable, root } from "./api";

export interface LiveEvent {
  seq: number;
  kind: string;
  run?: string | null;
  thread?: string | null;
  [field: string]: unknown;
}

/** Whether the stream is connected. */
export const live = signal(false);

type Listener = (event: LiveEvent) => void;

const listeners = new Set<Listener>();
const SHORTEST_MS = 250;
const LONGEST_MS = 4000;
let last: string | null = null;

/** Call back for each event while the component is mounted. */
export function useLive(listener: Listener): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    const call: Listener = (event) => latest.current(event);
    listeners.add(call);
    return () => void listeners.delete(call);
  }, []);
}

/** Call back for matching events, throttled: immediately for the first, then at most once per interval. */
export function useChanges(matches: (event: LiveEvent) => boolean, callback: () => void, everyMs = 200): void {
  const state = useRef({ timer: 0, due: false });
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  useLive((event) => {
    if (!matches(event)) return;
    const mine = state.current;
    if (mine.timer) {
      mine.due = true;
      return;
    }
    latest.current();
    const rest = () => {
      mine.timer = 0;
      if (mine.due) {
        mine.due = false;
        latest.current();
        mine.timer = window.setTimeout(rest, everyMs);
      }
    };
    mine.timer = window.setTimeout(rest, everyMs);
  });
}

/** Poll while something can change without an event: a process that dies sends none. */
export function useEvery(seconds: number, active: boolean, callback: () => void): void {
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(() => latest.current(), seconds * 1000);
    return () => clearInterval(timer);
  }, [active, seconds]);
}

/** Keep the stream connected while the page is open. */
export async function follow(): Promise<never> {
  let wait = SHORTEST_MS;
  for (;;) {
    try {
      await listen(() => {
        wait = SHORTEST_MS;
      });
    } catch (error) {
      if (!(error instanceof Refused)) reachable.value = false;
    }
    live.value = false;
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, LONGEST_MS);
  }
}

/** The server refused the stream. */
class Refused extends Error {}

async function listen(opened: () => void): Promise<void> {
  const url = new URL("live", root);
  if (last !== null) url.searchParams.set("after", last);
  const answer = await fetch(url, { headers: { ...headers(), accept: "text/event-stream" }, cache: "no-store" });
  if (answer.status === 401) {
    lock();
    await until(() => locked.value === null);
    return;
  }
  if (!answer.ok || answer.body === null) throw new Refused(`live: ${answer.status}`);
  opened();
  live.value = true;
  reachable.value = true;
  // Changes between the first responses and the start of the stream were missed: fetch everything again.
  epoch.value += 1;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r\n", "\n");
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      deliver(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

function deliver(block: string): void {
  let data = "";
  let kind = "";
  let id: string | null = null;
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data += line.slice(5).trim();
    else if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  if (id !== null) last = id;
  if (!data) return;
  let told: Record<string, unknown>;
  try {
    told = JSON.parse(data) as Record<string, unknown>;
  } catch {
    return;
  }
  const event = { seq: Number(id ?? 0), kind, ...told } as LiveEvent;
  for (const listener of [...listeners]) listener(event);
}

function until(met: () => boolean): Promise<void> {
  return new Promise((done) => {
    const look = () => (met() ? done() : void setTimeout(look, 100));
    look();
  });
}

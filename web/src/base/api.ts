// HTTP requests: JSON, problem documents as errors, the API key of this tab, and whether the server is reachable.
import { signal } from "@preact/signals";

import { written, type Query } from "./route";

const KEY = "treering.key";

/** The API is beside /ui/, whatever prefix a proxy adds. */
export const root = new URL("../", location.href.split("#")[0]);

/** Whether a key is required: for the first time, or because the given one was refused. */
export const locked = signal<"asked" | "refused" | null>(null);
/** Whether the server is reachable. */
export const reachable = signal(true);
/** Incremented when all data should be fetched again: a new key, or a reconnection. */
export const epoch = signal(0);

/** An entry that the server left out of a list, because it cannot be read. */
interface Unreadable {
  name: string;
  problem: string;
}
/** What the lists that were fetched last have left out, and from where. */
export const unreadable = signal<(Unreadable & { path: string })[]>([]);

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
  ) {
    super(detail || title);
  }
}

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
  locked.value = null;
  epoch.value += 1;
}

/** Require a key. */
export function lock(): void {
  locked.value = sessionStorage.getItem(KEY) ? "refused" : "asked";
}

export function headers(): Record<string, string> {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Build an API URL. Every path segment is encoded, so ids may contain any character. */
export function at(path: string[], query: Query = {}): string {
  const url = new URL(path.map(encodeURIComponent).join("/"), root);
  const asked = written(query).toString();
  return asked ? `${url.pathname}?${asked}` : url.pathname;
}

export async function raw(
  method: string,
  url: string,
  { body, signal: stop }: { body?: unknown; signal?: AbortSignal | undefined } = {},
): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(url, {
      method,
      headers: { ...headers(), ...(body === undefined ? {} : { "content-type": "application/json" }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(stop ? { signal: stop } : {}),
      cache: "no-store",
    });
  } catch (error) {
    if (stop?.aborted) throw error;
    reachable.value = false;
    throw new Problem(0, "Cannot reach the server", "It may have been stopped. This page reconnects automatically.");
  }
  reachable.value = true;
  if (answer.ok) return answer;
  if (answer.status === 401) lock();
  throw await problemOf(answer);
}

export async function get<T>(url: string, stop?: AbortSignal): Promise<T> {
  const told = (await (await raw("GET", url, { signal: stop })).json()) as T;
  const left = (told as { unreadable?: Unreadable[] } | null)?.unreadable ?? [];
  const path = new URL(url, location.href).pathname;
  if (left.length > 0 || unreadable.value.some((each) => each.path === path))
    unreadable.value = [...unreadable.value.filter((each) => each.path !== path), ...left.map((each) => ({ ...each, path }))];
  return told;
}

export async function send<T>(method: string, url: string, body?: unknown): Promise<T> {
  const answer = await raw(method, url, { body: body ?? (method === "DELETE" ? undefined : {}) });
  const text = await answer.text();
  return (text ? JSON.parse(text) : null) as T;
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const told = (await answer.json()) as { title?: string; detail?: string };
    return new Problem(answer.status, told.title ?? answer.statusText, told.detail ?? "");
  } catch {
    return new Problem(answer.status, answer.statusText || "Request failed", `The server responded with ${answer.status}.`);
  }
}

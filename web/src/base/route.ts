// The route, kept in the URL hash: every view and selection has a shareable URL.
import { signal } from "@preact/signals";

export interface Route {
  path: string[];
  query: Record<string, string>;
}

type Part = string | number | boolean | null | undefined;

/** Query parameters. Empty ones are left out, lists repeated. */
export type Query = Record<string, Part | readonly string[]>;

export function written(query: Query): URLSearchParams {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? (value as readonly string[]) : [value as Part]) {
      if (each !== null && each !== undefined && each !== "") told.append(name, String(each));
    }
  }
  return told;
}

export const route = signal<Route>(parse(location.hash));

window.addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function href(path: string[], query: Query = {}): string {
  const end = written(query).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${end ? `?${end}` : ""}`;
}

export function go(path: string[], query: Query = {}): void {
  location.hash = href(path, query);
}

/** Change part of the query; by default without a new history entry. */
export function select(changes: Query, { step = false } = {}): void {
  const { path, query } = parse(location.hash); // a link that was just followed counts, although its event is still to come
  const next = href(path, { ...query, ...changes });
  if (next === location.hash) return;
  if (step) {
    location.hash = next;
  } else {
    history.replaceState(null, "", next);
    route.value = parse(next);
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

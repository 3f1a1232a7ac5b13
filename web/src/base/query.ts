// Hooks that fetch data: the data, the error, and a retry.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { epoch, get, Problem } from "./api";

export interface Asked<T> {
  data: T | undefined;
  problem: Problem | null;
  loading: boolean;
  reload: () => void;
  /** Retry after an error. */
  retry: () => void;
}

interface Held<T> {
  url: string | null;
  data: T | undefined;
  problem: Problem | null;
  loading: boolean;
}

/** Fetch a URL (`null`: nothing). A reload keeps the current data until the new response arrives. */
export function useGet<T>(url: string | null): Asked<T> {
  const [held, hold] = useState<Held<T>>({ url, data: undefined, problem: null, loading: url !== null });
  const [turn, setTurn] = useState(0);
  const reload = useCallback(() => setTurn((was) => was + 1), []);
  const era = epoch.value;
  useEffect(() => {
    if (url === null) {
      hold({ url, data: undefined, problem: null, loading: false });
      return;
    }
    const stop = new AbortController();
    hold((was) => (was.url === url ? { ...was, loading: true } : { url, data: undefined, problem: null, loading: true }));
    get<T>(url, stop.signal).then(
      (data) => hold({ url, data, problem: null, loading: false }),
      (error: unknown) => {
        if (stop.signal.aborted) return;
        hold((was) => ({ url, data: was.url === url ? was.data : undefined, problem: asProblem(error), loading: false }));
      },
    );
    return () => stop.abort();
  }, [url, turn, era]);
  const mine = held.url === url;
  return {
    data: mine ? held.data : undefined,
    problem: mine ? held.problem : null,
    loading: mine ? held.loading : url !== null,
    reload,
    retry: reload,
  };
}

export interface Listed<T> extends Asked<T[]> {
  /** Whether the server has more pages. */
  hasMore: boolean;
  more: () => void;
}

interface Pages<T> {
  url: string | null;
  items: T[] | undefined;
  cursor: string | null;
  problem: Problem | null;
  /** Why the next page could not be fetched. */
  stuck: Problem | null;
  loading: boolean;
}

/** Fetch a list page by page. `reload` fetches the first page and merges it with the rest. */
export function usePages<T>(url: string | null, field: string, idOf: (item: T) => string): Listed<T> {
  const empty: Pages<T> = { url, items: undefined, cursor: null, problem: null, stuck: null, loading: url !== null };
  const [pages, hold] = useState<Pages<T>>(empty);
  const [turn, setTurn] = useState(0);
  const busy = useRef(false);
  const reload = useCallback(() => setTurn((was) => was + 1), []);
  const era = epoch.value;
  useEffect(() => {
    if (url === null) {
      hold({ ...empty, loading: false });
      return;
    }
    const stop = new AbortController();
    hold((was) => (was.url === url ? { ...was, loading: true } : empty));
    get<Record<string, unknown>>(url, stop.signal).then(
      (page) =>
        hold((was) => {
          const fresh = page[field] as T[];
          const cursor = (page["next_cursor"] as string | null | undefined) ?? null;
          // Keep the later pages if they follow the first one without a gap.
          const end = fresh.at(-1);
          const seam = cursor !== null && was.url === url && end ? (was.items ?? []).findIndex((item) => idOf(item) === idOf(end)) : -1;
          if (seam < 0) return { url, items: fresh, cursor, problem: null, stuck: null, loading: false };
          const known = new Set(fresh.map(idOf));
          const rest = was.items!.slice(seam + 1).filter((item) => !known.has(idOf(item)));
          const isWhole = rest.length === 0;
          return { ...was, items: [...fresh, ...rest], cursor: isWhole ? cursor : was.cursor, problem: null, loading: false };
        }),
      (error: unknown) => {
        if (!stop.signal.aborted) hold((was) => ({ ...was, url, problem: asProblem(error), loading: false }));
      },
    );
    return () => stop.abort();
  }, [url, turn, era]);
  const more = useCallback(() => {
    if (busy.current || url === null || pages.url !== url || pages.cursor === null) return;
    busy.current = true;
    const next = new URL(url, location.href);
    next.searchParams.set("cursor", pages.cursor);
    get<Record<string, unknown>>(next.pathname + next.search)
      .then(
        (page) =>
          hold((was) => {
            if (was.url !== url) return was;
            const known = new Set((was.items ?? []).map(idOf));
            const added = (page[field] as T[]).filter((item) => !known.has(idOf(item)));
            return {
              ...was,
              items: [...(was.items ?? []), ...added],
              cursor: (page["next_cursor"] as string | null | undefined) ?? null,
              stuck: null,
            };
          }),
        (error: unknown) => hold((was) => (was.url === url ? { ...was, stuck: asProblem(error) } : was)),
      )
      .finally(() => {
        busy.current = false;
      });
  }, [url, pages.url, pages.cursor]);
  const mine = pages.url === url;
  // A page of filtered rows may be empty although older ones match: go on until there is something to show.
  const isEmpty = mine && pages.items?.length === 0 && pages.cursor !== null && pages.stuck === null;
  useEffect(() => {
    if (isEmpty) more();
  }, [isEmpty, more]);
  return {
    data: mine && !isEmpty ? pages.items : undefined,
    problem: mine ? (pages.problem ?? pages.stuck) : null,
    loading: mine ? pages.loading || isEmpty : url !== null,
    hasMore: mine && pages.cursor !== null,
    more,
    reload,
    retry: mine && pages.problem === null && pages.stuck !== null ? more : reload,
  };
}

export function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, "Unexpected error in this page", String(error));
}

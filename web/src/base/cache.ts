// A cache of content that never changes once complete; the oldest entries are evicted.
import { useCallback, useEffect, useState } from "preact/hooks";

import { epoch, get, Problem } from "./api";
import { asProblem } from "./query";

const MOST = 400;
const known = new Map<string, Promise<unknown>>();

export function once<T>(url: string): Promise<T> {
  let found = known.get(url) as Promise<T> | undefined;
  if (!found) {
    found = get<T>(url);
    known.set(url, found);
    found.catch(() => known.delete(url));
    if (known.size > MOST) known.delete(known.keys().next().value as string);
  }
  return found;
}

interface Once<T> {
  data: T | undefined;
  problem: Problem | null;
  retry: () => void;
}

/**
 * Like `useGet`, from the cache. While the content is not complete, `version` is something that changes with it: then
 * it is fetched again, and not kept. Null says that it is complete.
 */
export function useOnce<T>(url: string | null, version: unknown = null): Once<T> {
  const [held, hold] = useState<{ url: string | null; data?: T; problem?: Problem }>({ url });
  const [turn, setTurn] = useState(0);
  const retry = useCallback(() => setTurn((was) => was + 1), []);
  const era = epoch.value;
  useEffect(() => {
    if (url === null) return;
    let current = true;
    (version === null ? once<T>(url) : get<T>(url)).then(
      (data) => current && hold({ url, data }),
      (error: unknown) => current && hold({ url, problem: asProblem(error) }),
    );
    return () => {
      current = false;
    };
  }, [url, version, turn, era]);
  const mine = held.url === url;
  return { data: mine ? held.data : undefined, problem: mine ? (held.problem ?? null) : null, retry };
}

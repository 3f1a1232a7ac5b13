// Empty, loading and error states.
import type { ComponentChildren } from "preact";

import { Problem, reachable } from "../base/api";
import { href, route } from "../base/route";
import { Rings } from "./rings";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <Rings count={3} faint />
      <h2>{title}</h2>
      {children && <div class="state-words">{children}</div>}
    </div>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <div class="state" role="status" aria-live="polite">
      <Rings count={4} growing />
      <p class="muted">{what} …</p>
    </div>
  );
}

export function Failure({ problem, retry }: { problem: Problem; retry?: () => void }) {
  const missing = problem.status === 404;
  const place = route.value.path[0] ?? "runs";
  return (
    <div class="state" role="alert">
      <Rings count={3} broken />
      <h2>{missing ? "Not found" : problem.title}</h2>
      <p class="state-words">{problem.detail || problem.title}</p>
      <p>
        {retry && !missing && (
          <button type="button" onClick={retry}>
            Try again
          </button>
        )}
        {missing && (
          <a class="button" href={href([place])}>
            Go to {place}
          </a>
        )}
      </p>
    </div>
  );
}

/** A failed refresh while older data is still shown. */
export function StaleNotice({ problem, retry }: { problem: Problem; retry: () => void }) {
  if (!reachable.value) return null; // the banner says so, and the page reconnects by itself
  return (
    <p class="stale-notice" role="alert">
      <span>
        This data may be incomplete or out of date. {problem.title}
        {problem.detail && problem.detail !== problem.title && `: ${problem.detail}`}
      </span>
      <button type="button" onClick={retry}>
        Try again
      </button>
    </p>
  );
}

/** Render a request: loading, an error, or its data. */
export function Answer<T>({
  asked,
  what,
  children,
}: {
  asked: { data: T | undefined; problem: Problem | null; retry: () => void };
  what?: string;
  children: (data: T) => ComponentChildren;
}) {
  if (asked.data !== undefined) {
    return (
      <>
        {children(asked.data)}
        {asked.problem && <StaleNotice problem={asked.problem} retry={asked.retry} />}
      </>
    );
  }
  if (asked.problem) return <Failure problem={asked.problem} retry={asked.retry} />;
  return <Loading {...(what ? { what } : {})} />;
}

/** A view that consists of a state only, with a heading for screen readers. */
export function Alone({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="view">
      <h1 class="hidden">{title}</h1>
      {children}
    </div>
  );
}

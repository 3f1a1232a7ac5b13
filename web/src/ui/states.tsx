// Nothing there, not there yet, or gone wrong: each says so, and what can be done.
import type { ComponentChildren } from "preact";

import { Problem, reachable } from "../base/api";
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
  return (
    <div class="state" role="alert">
      <Rings count={3} broken />
      <h2>{missing ? "There is nothing here" : problem.title}</h2>
      <p class="state-words">{problem.detail || problem.title}</p>
      <p>
        {retry && !missing && (
          <button type="button" onClick={retry}>
            Try again
          </button>
        )}
        {missing && (
          <a class="button" href="#/runs">
            To the runs
          </a>
        )}
      </p>
    </div>
  );
}

/** What could not be read while something is shown already: that stays, and this says that it is not all. */
export function Hitch({ problem, retry }: { problem: Problem; retry: () => void }) {
  if (!reachable.value) return null; // the banner says so, and the page goes on by itself
  return (
    <p class="hitch" role="alert">
      <span>
        This is not all, or not the newest. {problem.title}
        {problem.detail && problem.detail !== problem.title && `: ${problem.detail}`}
      </span>
      <button type="button" onClick={retry}>
        Try again
      </button>
    </p>
  );
}

/** What is shown around an answer: waiting, a problem, or the answer itself. */
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
        {asked.problem && <Hitch problem={asked.problem} retry={asked.retry} />}
      </>
    );
  }
  if (asked.problem) return <Failure problem={asked.problem} retry={asked.retry} />;
  return <Loading {...(what ? { what } : {})} />;
}

/** A view that is nothing but such a state: its heading is there for those who do not see the page. */
export function Alone({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="view">
      <h1 class="hidden">{title}</h1>
      {children}
    </div>
  );
}

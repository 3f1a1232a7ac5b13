// What can go wrong: an answer of the server, or no answer.
import type { HttpProblem, Json } from "./api.js";

/** An error that the server answered with. What to do about it follows from `type` and `retryable`. */
export class TreeringError extends Error {
  /** The kind of error, such as `NotFound`, `Conflict` or `BudgetExceeded`. */
  readonly type: string;
  readonly status: number;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly more: Record<string, Json>;

  constructor(problem: HttpProblem) {
    super(problem.detail || problem.title);
    this.name = "TreeringError";
    this.type = problem.type.split(/[/#:]/).at(-1) ?? problem.type;
    this.status = problem.status;
    this.retryable = problem.retryable ?? false;
    this.more = problem.more ?? {};
  }
}

/** The server could not be reached, or its answer was not complete. */
export class Unreachable extends Error {
  constructor(url: URL, cause: unknown) {
    super(`${url.origin} cannot be reached: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.name = "Unreachable";
  }
}

/** Read the error of an answer. Proxies answer with pages of their own, which become errors as well. */
export async function errorOf(answer: Response): Promise<TreeringError> {
  const text = await answer.text().catch(() => "");
  try {
    const problem = JSON.parse(text) as Partial<HttpProblem>;
    if (typeof problem.type === "string" && typeof problem.detail === "string") {
      return new TreeringError({ title: "", status: answer.status, ...problem } as HttpProblem);
    }
  } catch {
    // not a problem document
  }
  const retryable = answer.status === 429 || answer.status >= 502;
  const detail = `${answer.status} ${answer.statusText}: ${text.slice(0, 200)}`;
  return new TreeringError({ type: "Unexpected", title: "", status: answer.status, detail, retryable });
}

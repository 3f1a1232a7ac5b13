// uPlot, loaded on demand. It formats numbers for the browser's language as soon as it loads, and some systems name
// a language that does not exist (en-US@posix).
import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

let loading: Promise<typeof uPlot> | null = null;

export function loadPlot(): Promise<typeof uPlot> {
  loading ??= import("uplot").then((module) => module.default);
  return loading;
}

try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en" });
}

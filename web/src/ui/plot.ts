// uPlot, loaded when something is to be drawn. It asks for the language's number format as soon as it is loaded, and
// some systems name a language that does not exist (en-US@posix).
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

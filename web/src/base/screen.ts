// Whether the screen is narrow, as a phone is: rows become cards of two or three lines, and panes come one at a time.
// The same width is in the style sheets.
import { signal } from "@preact/signals";

const query = matchMedia("(max-width: 700px)");

export const narrow = signal(query.matches);
query.addEventListener("change", () => {
  narrow.value = query.matches;
});

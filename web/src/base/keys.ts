// Keyboard shortcuts: views register keys while they are shown; sequences such as `g r` are two keys.
import { useLayoutEffect, useRef } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

const stack: { current: Keys }[] = [];
const SEQUENCE_MS = 900;
let first: { key: string; at: number } | null = null;

/** Register keys while the component is mounted. The most recently mounted component wins. */
export function useKeys(keys: Keys, active = true): void {
  const held = useRef(keys);
  held.current = keys;
  // A layout effect: a key pressed as soon as the view is visible must not be lost.
  useLayoutEffect(() => {
    if (!active) return;
    stack.push(held);
    return () => void stack.splice(stack.indexOf(held), 1);
  }, [active]);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target) && event.key !== "Escape") return;
  if (document.querySelector("dialog[open]")) return;
  const pair = first && event.timeStamp - first.at < SEQUENCE_MS ? `${first.key} ${event.key}` : null;
  first = null;
  for (const name of pair ? [pair, event.key] : [event.key]) {
    for (let index = stack.length - 1; index >= 0; index -= 1) {
      const action = stack[index]?.current[name];
      if (action) {
        // Enter and space on a button or link activate it.
        if ((name === "Enter" || name === " ") && isControl(event.target)) return;
        event.preventDefault();
        action(event);
        return;
      }
    }
  }
  if (event.key === "g") first = { key: "g", at: event.timeStamp };
});

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

function isControl(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest("button, a, input, summary") !== null;
}

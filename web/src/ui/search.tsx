// A search field; `/` focuses it, and typing is debounced.
import { useEffect, useRef, useState } from "preact/hooks";

import { useKeys } from "../base/keys";

const WAIT_MS = 180;

export function Search({ label, value, onChange }: { label: string; value: string; onChange: (text: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => {
    if (document.activeElement !== field.current) setText(value);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useKeys({ "/": () => field.current?.focus() });
  return (
    <input
      ref={field}
      type="search"
      class="search"
      aria-label={label}
      placeholder={`${label}  ( / )`}
      value={text}
      onInput={(event) => {
        const next = event.currentTarget.value;
        setText(next);
        clearTimeout(timer.current);
        timer.current = window.setTimeout(() => onChange(next.trim()), WAIT_MS);
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          field.current?.blur();
        }
        if (event.key === "Enter") {
          clearTimeout(timer.current);
          onChange(text.trim());
          field.current?.blur();
        }
      }}
    />
  );
}

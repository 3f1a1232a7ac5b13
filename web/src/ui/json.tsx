// Values as a collapsible tree, long text folded. Nothing is rendered as HTML.
import { useMemo, useState } from "preact/hooks";

import { visible } from "../base/format";

const LONG = 600;
const MANY = 100;
/** Lists and objects up to this size are open at first. */
const MANY_OPEN = 25;
const WORTH_SEARCHING = 30;

interface Shown {
  value: unknown;
  name?: string;
  depth?: number;
  open?: boolean;
  /** Offer a filter if the value is large. */
  search?: boolean;
}

export function Value({ value, name, depth = 0, open, search = false }: Shown) {
  if (search && isLarge(value)) return <Searchable value={value as object} />;
  if (value !== null && typeof value === "object") {
    if (name === undefined && depth === 0 && Object.keys(value).length > 0) return <Entries value={value} depth={0} />;
    return <Branch value={value} name={name} depth={depth} open={open ?? (depth < 2 && Object.keys(value).length <= MANY_OPEN)} />;
  }
  return (
    <div class="leaf">
      {name !== undefined && <span class="key">{visible(name)}</span>}
      <Leaf value={value} />
    </div>
  );
}

function Branch({ value, name, depth, open }: { value: object; name: string | undefined; depth: number; open: boolean }) {
  const [isOpen, setOpen] = useState(open);
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  if (entries.length === 0) {
    return (
      <div class="leaf">
        {name !== undefined && <span class="key">{visible(name)}</span>}
        <span class="muted">{isList ? "empty list" : "empty"}</span>
      </div>
    );
  }
  return (
    <div class="branch">
      <button type="button" class="twist" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="arrow" aria-hidden="true" />
        {name !== undefined && <span class="key">{visible(name)}</span>}
        <span class="muted">
          {isList ? `${entries.length} ${entries.length === 1 ? "item" : "items"}` : isOpen ? "" : preview(entries)}
        </span>
      </button>
      {isOpen && (
        <div class="below">
          <Entries value={value} depth={depth} open={depth > 1 && open ? open : undefined} />
        </div>
      )}
    </div>
  );
}

function Searchable({ value }: { value: object }) {
  const [words, setWords] = useState("");
  const found = useMemo(() => (words ? matching(value, words.toLowerCase()) : value), [value, words]);
  return (
    <div class="searchable">
      <input
        type="search"
        placeholder="Filter keys and values"
        aria-label="Filter keys and values"
        value={words}
        onInput={(event) => setWords(event.currentTarget.value)}
      />
      {found === undefined ? (
        <p class="muted">No matches</p>
      ) : (
        <Entries key={words === "" ? "all" : "found"} value={found as object} depth={0} open={words !== "" || undefined} />
      )}
    </div>
  );
}

function isLarge(value: unknown): boolean {
  let left = WORTH_SEARCHING;
  const stack = [value];
  for (let top = stack.pop(); top !== undefined && left > 0; top = stack.pop()) {
    left -= 1;
    if (top !== null && typeof top === "object") stack.push(...Object.values(top).slice(0, WORTH_SEARCHING));
  }
  return value !== null && typeof value === "object" && left === 0;
}

/** The parts of a value whose key or text contains the words; undefined if there are none. */
function matching(value: unknown, words: string): unknown {
  if (value === null || typeof value !== "object") {
    return String(value).toLowerCase().includes(words) ? value : undefined;
  }
  const kept = Object.entries(value).flatMap(([key, each]) => {
    const found = key.toLowerCase().includes(words) ? (each as unknown) : matching(each, words);
    return found === undefined ? [] : [[key, found] as const];
  });
  return kept.length > 0 ? Object.fromEntries(kept) : undefined;
}

function Entries({ value, depth, open }: { value: object; depth: number; open?: boolean | undefined }) {
  const [shown, setShown] = useState(MANY);
  const entries = Object.entries(value);
  return (
    <div class="entries-of">
      {entries.slice(0, shown).map(([key, each]) => (
        <Value key={key} name={key} value={each} depth={depth + 1} {...(open ? { open } : {})} />
      ))}
      {entries.length > shown && (
        <button type="button" class="quiet" onClick={() => setShown(shown + 10 * MANY)}>
          {entries.length - shown} more
        </button>
      )}
    </div>
  );
}

function Leaf({ value }: { value: unknown }) {
  if (value === "") return <span class="muted">empty text</span>;
  if (typeof value === "string") return <Text text={value} />;
  return <span class={`literal ${value === null ? "null" : typeof value}`}>{String(value)}</span>;
}

/** Plain text; long text is folded until it is expanded. */
export function Text({ text }: { text: string }) {
  const [whole, setWhole] = useState(false);
  const folded = !whole && text.length > LONG * 2;
  return (
    <span class="text" dir="auto">
      {visible(folded ? text.slice(0, LONG) : text)}
      {folded && (
        <button type="button" class="quiet" onClick={() => setWhole(true)}>
          … {text.length - LONG} more characters
        </button>
      )}
    </span>
  );
}

function preview(entries: readonly (readonly [string, unknown])[]): string {
  const names = entries.slice(0, 4).map(([key]) => key);
  return entries.length > 4 ? `${names.join(", ")}, …` : names.join(", ");
}

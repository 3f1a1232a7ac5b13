// Values as a collapsible tree, long text folded. Nothing is rendered as HTML.
import { useState } from "preact/hooks";

const LONG = 600;
const MANY = 100;

export function Value({ value, name, depth = 0, open }: { value: unknown; name?: string; depth?: number; open?: boolean }) {
  if (value !== null && typeof value === "object") {
    if (name === undefined && depth === 0 && Object.keys(value).length > 0) return <Entries value={value} depth={0} />;
    return <Branch value={value} name={name} depth={depth} open={open ?? depth < 2} />;
  }
  return (
    <div class="leaf">
      {name !== undefined && <span class="key">{name}</span>}
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
        {name !== undefined && <span class="key">{name}</span>}
        <span class="muted">{isList ? "empty list" : "empty"}</span>
      </div>
    );
  }
  return (
    <div class="branch">
      <button type="button" class="twist" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="arrow" aria-hidden="true" />
        {name !== undefined && <span class="key">{name}</span>}
        <span class="muted">
          {isList ? `${entries.length} ${entries.length === 1 ? "item" : "items"}` : isOpen ? "" : preview(entries)}
        </span>
      </button>
      {isOpen && (
        <div class="below">
          <Entries value={value} depth={depth} />
        </div>
      )}
    </div>
  );
}

function Entries({ value, depth }: { value: object; depth: number }) {
  const [shown, setShown] = useState(MANY);
  const entries = Object.entries(value);
  return (
    <div class="entries-of">
      {entries.slice(0, shown).map(([key, each]) => (
        <Value key={key} name={key} value={each} depth={depth + 1} />
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
  if (typeof value === "string") return <Text text={value} />;
  return <span class={`literal ${value === null ? "null" : typeof value}`}>{String(value)}</span>;
}

/** Plain text; long text is folded until it is expanded. */
export function Text({ text }: { text: string }) {
  const [whole, setWhole] = useState(false);
  const folded = !whole && text.length > LONG * 2;
  return (
    <span class="text">
      {folded ? text.slice(0, LONG) : text}
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

// A virtualised list: only visible rows are in the page. Row heights are fixed, or measured as rows appear.
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef } from "preact/hooks";

import { useKeys } from "../base/keys";
import { narrow } from "../base/screen";

interface Props<T> {
  items: readonly T[];
  label: string;
  /** The height of each row in pixels, or the estimate for rows not measured yet. */
  height: number;
  /** The height on a narrow screen, where rows have more lines. */
  tall?: number;
  measured?: boolean;
  idOf: (item: T, index: number) => string;
  row: (item: T, index: number, isSelected: boolean) => ComponentChildren;
  selected?: number;
  onSelect?: (index: number) => void;
  onOpen?: (index: number) => void;
  /** Called when the user scrolls near the end. */
  onEnd?: () => void;
  /** Whether this list handles j, k and the arrow keys. */
  keys?: boolean;
  /** Stay scrolled to the end as the list grows, unless the user scrolled away. */
  tail?: boolean;
  class?: string;
}

const BEYOND = 6;

export function Rows<T>(props: Props<T>) {
  const height = narrow.value ? (props.tall ?? props.height) : props.height;
  const { items, measured = false, selected = -1, onSelect, onOpen, onEnd, keys = true } = props;
  const box = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((turn: number) => turn + 1, 0);
  const sizes = useRef<Map<string, number>>(new Map());
  const version = useRef(0);
  const atEnd = useRef(true);

  const tops = useMemo(() => {
    if (!measured) return null;
    const made = new Float64Array(items.length + 1);
    for (let index = 0; index < items.length; index += 1) {
      const item = items[index] as T;
      made[index + 1] = (made[index] ?? 0) + (sizes.current.get(props.idOf(item, index)) ?? height);
    }
    return made;
  }, [items, measured, height, version.current]);
  const topOf = (index: number) => (tops ? (tops[index] ?? 0) : index * height);
  const whole = topOf(items.length);

  const view = box.current;
  const from = view?.scrollTop ?? 0;
  const until = from + (view?.clientHeight ?? 800);
  const first = Math.max(0, find(from, items.length, topOf) - BEYOND);
  const last = Math.min(items.length, find(until, items.length, topOf) + 1 + BEYOND);

  const ask = useRef(onEnd);
  ask.current = onEnd;
  useEffect(() => {
    if (last >= items.length - 2 * BEYOND) ask.current?.();
  }, [last, items.length]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const size = new ResizeObserver(() => redraw(0));
    size.observe(element);
    redraw(0);
    return () => size.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (props.tail && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [whole, props.tail]);

  // Row heights change when their content loads.
  const watcher = useMemo(
    () =>
      new ResizeObserver((changes) => {
        let changed = false;
        for (const { target } of changes) {
          const element = target as HTMLElement;
          const size = element.offsetHeight;
          const id = element.dataset["row"] ?? "";
          if (size && element.isConnected && sizes.current.get(id) !== size) {
            sizes.current.set(id, size);
            changed = true;
          }
        }
        if (changed) {
          version.current += 1;
          redraw(0);
        }
      }),
    [],
  );
  useEffect(() => () => watcher.disconnect(), [watcher]);
  const watch = useCallback(
    (element: HTMLElement | null) => {
      if (element) watcher.observe(element);
    },
    [watcher],
  );

  // Keep the selected row visible.
  const shown = useRef("");
  useLayoutEffect(() => {
    const element = box.current;
    const item = items[selected];
    if (!element || item === undefined) return;
    const id = props.idOf(item, selected);
    if (id === shown.current) return;
    shown.current = id;
    const top = topOf(selected);
    const bottom = topOf(selected + 1);
    if (top < element.scrollTop) element.scrollTop = Math.max(0, top - height);
    else if (bottom > element.scrollTop + element.clientHeight) {
      element.scrollTop = bottom - element.clientHeight + height;
    }
  }, [selected, items]);

  const move = (to: number) => {
    if (items.length) onSelect?.(Math.max(0, Math.min(items.length - 1, to)));
  };
  const page = () => Math.max(1, Math.floor((box.current?.clientHeight ?? 400) / height) - 1);
  useKeys(
    {
      j: () => move(selected + 1),
      ArrowDown: () => move(selected + 1),
      k: () => move(selected - 1),
      ArrowUp: () => move(selected - 1),
      PageDown: () => move(selected + page()),
      PageUp: () => move(selected - page()),
      Home: () => move(0),
      End: () => move(items.length - 1),
      ...(onOpen ? { Enter: () => selected >= 0 && onOpen(selected) } : {}),
    },
    keys && onSelect !== undefined,
  );

  const rows = [];
  for (let index = first; index < last; index += 1) {
    const item = items[index] as T;
    const id = props.idOf(item, index);
    rows.push(
      <div
        key={id}
        role="listitem"
        class={index === selected ? "row selected" : "row"}
        aria-current={index === selected ? "true" : undefined}
        style={{ transform: `translateY(${topOf(index)}px)`, ...(measured ? {} : { height: `${height}px` }) }}
        data-row={id}
        ref={measured ? watch : undefined}
      >
        {props.row(item, index, index === selected)}
      </div>,
    );
  }
  return (
    <div
      ref={box}
      class={`rows ${props.class ?? ""}`}
      tabIndex={0}
      role="region"
      aria-label={props.label}
      data-total={items.length}
      onScroll={(event) => {
        const element = event.currentTarget;
        atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
        redraw(0);
      }}
    >
      <div role="list" class="rows-inside" style={{ height: `${whole}px` }}>
        {rows}
      </div>
    </div>
  );
}

/** The last row that starts at or above a scroll position. */
function find(place: number, count: number, topOf: (index: number) => number): number {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (topOf(middle + 1) <= place) low = middle + 1;
    else high = middle;
  }
  return low;
}

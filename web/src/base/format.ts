// Formatting of numbers and times.

export interface Amount {
  currency: string;
  amount: string | number;
}

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value < 100_000 ? plain.format(value) : short.format(value);
}

export function exact(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : plain.format(value);
}

const MARKUP = /^ {0,3}(?:#{1,6} +|> ?|```[\w+-]*$)|(?<!\w)\*\*(?=\S)|(?<=\S)\*\*(?!\w)|!?\[([^\]\n]*)\]\(\S+?\)/gm;

/** The beginning of a text without the Markdown that only formats it, as previews of messages have it. */
export function beginning(text: string): string {
  return text.slice(0, 400).replace(MARKUP, "$1");
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${exact(value)} ${value === 1 ? one : many}`;
}

export function duration(us: number | null | undefined): string {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1_000_000) return `${trim(us / 1000)} ms`;
  const seconds = us / 1e6;
  if (seconds < 60) return `${trim(seconds)} s`;
  if (seconds < 3600) return both(seconds / 60, "min", seconds % 60, "s");
  if (seconds < 86_400) return both(seconds / 3600, "h", (seconds % 3600) / 60, "min");
  return both(seconds / 86_400, "d", (seconds % 86_400) / 3600, "h");
}

/** "1 h 20 min", and "1 h" if nothing is left. */
function both(many: number, unit: string, rest: number, smaller: string): string {
  return `${Math.floor(many)} ${unit}${rest >= 1 ? ` ${Math.floor(rest)} ${smaller}` : ""}`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return `${value} B`;
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]] as const) {
    if (value >= size) return `${trim(value / size)} ${unit}`;
  }
  return `${value} B`;
}

export function money(amount: Amount): string {
  const value = Number(amount.amount);
  const digits = value === 0 ? 2 : Math.abs(value) < 0.01 ? 5 : Math.abs(value) < 1 ? 4 : 2;
  try {
    return new Intl.NumberFormat("en", {
      style: "currency",
      currency: amount.currency,
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    }).format(value);
  } catch {
    return `${value.toFixed(digits)} ${amount.currency}`;
  }
}

export function moneys(amounts: readonly Amount[] | null | undefined): string {
  return amounts && amounts.length > 0 ? amounts.map(money).join(" + ") : "–";
}

/** Convert microseconds or an ISO string to a Date. */
export function when(value: number | string | null | undefined): Date | null {
  if (value === null || value === undefined || value === "") return null;
  const date = typeof value === "number" ? new Date(value / 1000) : new Date(value);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function stamp(value: number | string | null | undefined): string {
  const date = when(value);
  if (!date) return "–";
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function ago(value: number | string | null | undefined, now = Date.now()): string {
  const date = when(value);
  if (!date) return "–";
  const seconds = (now - date.getTime()) / 1000;
  if (seconds < 0) return `in ${span(-seconds)}`;
  return seconds < 5 ? "just now" : `${span(seconds)} ago`;
}

const MADE = /^([a-z]+_)?[0-7][0-9a-z]{25}$/;
const HASH = /^[0-9a-f]{64}$/;

/** The short form of an id, which the API and the command line accept as well. */
export function brief(id: string): string {
  const made = MADE.exec(id);
  if (made) return id.slice(0, (made[1]?.length ?? 0) + 14);
  return HASH.test(id) ? id.slice(0, 12) : id;
}

function span(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h`;
  return seconds < 730 * 86_400 ? `${Math.round(seconds / 86_400)} d` : `${Math.floor(seconds / (365.25 * 86_400))} years`;
}

function trim(value: number): string {
  return value >= 100 ? String(Math.round(value)) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/**
 * The top of a scale: the largest value, unless few are far above the others, as the time until somebody noticed that
 * a process had died. These are cut off, so that the others can still be told apart.
 */
export function outlierCap(values: readonly number[]): number {
  const sorted = values.filter((value) => value > 0).toSorted((one, other) => one - other);
  const most = sorted.at(-1) ?? 1;
  const usual = sorted[Math.floor((sorted.length - 1) * 0.9)] ?? most;
  return most > 3 * usual ? 1.3 * usual : most;
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

/** Make control characters visible: those that a terminal obeys, and those that hide or reorder text. */
export function visible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, (each) => {
    const code = each.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟦U+${code.toString(16).toUpperCase().padStart(4, "0")}⟧`;
  });
}

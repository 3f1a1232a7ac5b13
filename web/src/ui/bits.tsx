// Components that every view uses.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { ago, brief, plural, stamp, visible } from "../base/format";
import { href, type Query } from "../base/route";
import type { Said } from "../base/shapes";

const WORDS: Record<string, string> = { ok: "ok", error: "error", running: "running", crashed: "crashed", unfinished: "crashed" };

/** A status: its name, and an icon whose shape says the same without colour. */
export function Status({ status }: { status: string | null | undefined }) {
  const word = status ?? "open";
  const kind = WORDS[word] ?? (word === "open" ? "running" : word === "failed" ? "error" : "other");
  return (
    <span class={`status ${kind}`}>
      <svg viewBox="0 0 16 16" width="13" height="13" aria-hidden="true">
        <circle cx="8" cy="8" r="6" />
        {kind === "ok" && <circle class="full" cx="8" cy="8" r="2.6" />}
        {kind === "error" && <path d="M5.5 5.5l5 5m0-5l-5 5" />}
        {kind === "crashed" && <path d="M8 2v6l3 4" />}
        {kind === "running" && <path d="M8 4.6a3.4 3.4 0 0 1 3.4 3.4" />}
      </svg>
      {word}
    </span>
  );
}

/** The beginning of a message: who says it, and what. */
export function SaidLine({ said }: { said: Said }) {
  return (
    <span class="snippet" title={visible(said.text)}>
      <b>{said.role}</b> {visible(said.text)}
    </span>
  );
}

/** A long name that gives way in its middle, because names often differ only at the end. */
export function Name({ text }: { text: string }) {
  const shown = visible(text);
  if (shown.length < 24 || !/^[!-~]+$/.test(shown)) return <>{shown}</>;
  return (
    <span class="ends">
      <span class="cut">{shown.slice(0, -12)}</span>
      <span>{shown.slice(-12)}</span>
    </span>
  );
}

export function Time({ at }: { at: number | string | null | undefined }) {
  return <time title={stamp(at)}>{ago(at)}</time>;
}

export function Id({ id, to }: { id: string; to?: string }) {
  return to ? (
    <a class="id" href={to} title={id}>
      {brief(id)}
    </a>
  ) : (
    <span class="id" title={id}>
      {brief(id)}
    </span>
  );
}

/** Tags; in a row of a list at most two, and how many more there are. */
export function Tags({ tags, isShort = false }: { tags: readonly string[] | null | undefined; isShort?: boolean }) {
  const all = tags ?? [];
  const shown = isShort && all.length > 2 ? all.slice(0, 1) : all;
  return (
    <>
      {shown.map((tag) => (
        <span class="tag" key={tag} title={tag}>
          {tag}
        </span>
      ))}
      {shown.length < all.length && (
        <span class="tag" title={all.slice(shown.length).join(", ")}>
          +{all.length - shown.length}
        </span>
      )}
    </>
  );
}

/** Warns that keys or passwords seem to be in some files. */
export function SecretsTag({ secrets }: { secrets: { length: number } | null | undefined }) {
  return secrets?.length ? <span class="tag warn">{plural(secrets.length, "secret")}</span> : null;
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      class="quiet"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => {
          setDone(true);
          setTimeout(() => setDone(false), 1500);
        });
      }}
    >
      {done ? "Copied" : label}
    </button>
  );
}

/** Tabs that are links, so that each has its own URL. */
export function Tabs<T extends string>({
  tabs,
  now,
  to,
  label,
}: {
  tabs: readonly (readonly [T, ComponentChildren])[];
  now: T;
  to: (tab: T) => string;
  label: string;
}) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map(([tab, words]) => (
        <a key={tab} href={to(tab)} aria-current={tab === now ? "page" : undefined}>
          {words}
        </a>
      ))}
    </nav>
  );
}

export function Figure({ label, value, note }: { label: string; value: ComponentChildren; note?: ComponentChildren }) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>
        {value}
        {note !== undefined && <small>{note}</small>}
      </dd>
    </div>
  );
}

export function Head({
  title,
  above,
  children,
  aside,
}: {
  title: ComponentChildren;
  above?: ComponentChildren;
  children?: ComponentChildren;
  aside?: ComponentChildren;
}) {
  return (
    <header class="head">
      <div class="head-words">
        {above && <p class="above">{above}</p>}
        <h1>{title}</h1>
        {children}
      </div>
      {aside && <div class="head-aside">{aside}</div>}
    </header>
  );
}

export function Crumb({ path, query, children }: { path: string[]; query?: Query; children: ComponentChildren }) {
  return <a href={href(path, query)}>{children}</a>;
}

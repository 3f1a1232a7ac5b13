// A message of any format, as the REST API reads it: a role and parts.
import type { ComponentChildren, FunctionComponent } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { bytes, visible } from "../base/format";
import type { Part, ReadMessage } from "../base/shapes";
import { Copy } from "./bits";
import { Replaced } from "./diff";
import { Value } from "./json";
import { Link } from "./link";

const LONG = 6000;
const FOLDED = 2000;
const LONG_LINES = 60;
const FOLDED_LINES = 25;

type Rich = typeof import("./rich");
let loaded: Rich | undefined;

/** The module that renders Markdown, code and terminal output; until it has arrived, undefined. */
function useRich(): Rich | undefined {
  const [rich, setRich] = useState(loaded);
  useEffect(() => {
    if (rich) return;
    let isCurrent = true;
    void import("./rich").then((module) => {
      loaded = module;
      if (isCurrent) setRich(() => module);
    });
    return () => {
      isCurrent = false;
    };
  }, [rich]);
  return rich;
}

/** A message with its role, its parts, and buttons to copy it and to see it as it was saved. */
export function Message({ message, source, onEdit }: { message: ReadMessage; source?: unknown; onEdit?: () => void }) {
  const [isRaw, setRaw] = useState(false);
  const who = message.name && message.role !== "tool" ? `${message.role} · ${message.name}` : message.role;
  const text = isRaw ? JSON.stringify(source, null, 2) : message.parts.map(plain).filter(Boolean).join("\n\n");
  return (
    <article class={`said ${message.role}`}>
      <header>
        <h3>{visible(who)}</h3>
        <span class="said-tools">
          <Copy text={text} />
          {source !== undefined && (
            <button type="button" class="quiet" aria-pressed={isRaw} onClick={() => setRaw(!isRaw)}>
              JSON
            </button>
          )}
          {onEdit && (
            <button type="button" class="quiet" onClick={onEdit}>
              Edit
            </button>
          )}
        </span>
      </header>
      <div class="said-content">
        {isRaw ? <Raw value={source} /> : <Parts parts={message.parts} role={message.role} />}
      </div>
    </article>
  );
}

/** Messages in order; folded, only the last one until a reader asks for those before it. */
export function Messages({ messages, isFolded = false }: { messages: readonly ReadMessage[]; isFolded?: boolean }) {
  const [isWhole, setWhole] = useState(!isFolded || messages.length <= 2);
  return (
    <>
      {!isWhole && (
        <button type="button" class="quiet" onClick={() => setWhole(true)}>
          Show {messages.length - 1} earlier messages
        </button>
      )}
      {(isWhole ? messages : messages.slice(-1)).map((each, index) => (
        <Message key={index} message={each} />
      ))}
    </>
  );
}

export function Raw({ value }: { value: unknown }) {
  const rich = useRich();
  const text = JSON.stringify(value, null, 2) ?? "null";
  return <Folded text={text}>{(shown) => (rich ? <rich.Code text={shown} language="json" /> : <Plain text={shown} />)}</Folded>;
}

export function Parts({ parts, role }: { parts: readonly Part[]; role: string }) {
  if (parts.length === 0) return <span class="muted">empty</span>;
  return (
    <>
      {parts.map((part, index) => (
        <PartView key={index} part={part} role={role} />
      ))}
    </>
  );
}

function PartView({ part, role }: { part: Part; role: string }) {
  switch (part.kind) {
    case "text":
      return role === "tool" ? <Output text={part.text ?? ""} /> : <Prose text={part.text ?? ""} />;
    case "thinking":
      return part.text ? (
        <details class="thinking">
          <summary>Thinking</summary>
          <Prose text={part.text} />
        </details>
      ) : (
        <p class="muted">Thinking that the provider does not show</p>
      );
    case "tool_call":
      return (
        <Card kind="call" label={part.name ?? "tool"} note={part.call_id}>
          <Arguments value={part.value} />
        </Card>
      );
    case "tool_result":
      return (
        <Card kind={part.is_error ? "result failed" : "result"} label={part.name ?? "result"} note={part.call_id}>
          {part.text ? <Output text={part.text} /> : null}
          {part.value !== null && part.value !== undefined && <Value value={part.value} search />}
          {part.parts && part.parts.length > 0 && <Parts parts={part.parts} role="tool" />}
          {!part.text && (part.value ?? null) === null && !part.parts?.length && <span class="muted">empty</span>}
        </Card>
      );
    case "image":
      return <Image part={part} />;
    case "file":
      return <Attachment part={part} />;
    case "citation":
      return (
        <p class="citation">
          <span class="muted">source: </span>
          {part.url ? <Link url={part.url}>{visible(part.text || part.url)}</Link> : visible(part.text ?? "")}
        </p>
      );
    case "error":
      return (
        <div class="trouble">
          {part.text && <p>{visible(part.text)}</p>}
          {(part.value ?? null) !== null && <Value value={part.value} open={false} />}
        </div>
      );
    default:
      return <Value value={part.value} search />;
  }
}

function Card({
  kind,
  label,
  note,
  children,
}: {
  kind: string;
  label: string;
  note?: string | null | undefined;
  children: ComponentChildren;
}) {
  return (
    <div role="group" class={`part-card ${kind}`} aria-label={`${kind.startsWith("call") ? "Call of" : "Result of"} ${label}`}>
      <p class="part-name" title={note ?? undefined}>
        <span aria-hidden="true">{kind.startsWith("call") ? "→" : "←"}</span> {visible(label)}
        {kind.endsWith("failed") && <span class="tag warn">error</span>}
      </p>
      {children}
    </div>
  );
}

/** What a tool was called with. A program or a command reads better as such than as JSON. */
function Arguments({ value }: { value: unknown }) {
  const rich = useRich();
  if (value === null || value === undefined) return <span class="muted">no arguments</span>;
  if (typeof value === "string") return <Output text={value} />;
  if (typeof value !== "object") return <Value value={value} />;
  const entries = Object.entries(value);
  if (entries.length === 0) return <span class="muted">no arguments</span>;
  const { old_string: before, new_string: after, ...rest } = value as Record<string, unknown>;
  if (typeof before === "string" && typeof after === "string") {
    return (
      <>
        {Object.keys(rest).length > 0 && <Value value={rest} />}
        <Replaced before={before} after={after} />
      </>
    );
  }
  const long = entries.filter(([, each]) => typeof each === "string" && each.includes("\n")) as [string, string][];
  const others = Object.fromEntries(entries.filter(([, each]) => typeof each !== "string" || !each.includes("\n")));
  return (
    <>
      {Object.keys(others).length > 0 && <Value value={others} search />}
      {long.map(([name, text]) => (
        <div key={name}>
          <p class="argument">{name}</p>
          <Folded text={text}>
            {(shown) => (rich ? <rich.Code text={shown} language={languageOf(name, value)} /> : <Plain text={shown} />)}
          </Folded>
        </div>
      ))}
    </>
  );
}

const LANGUAGES: Record<string, string> = {
  c: "cpp", cc: "cpp", cpp: "cpp", css: "css", go: "go", h: "cpp", html: "xml", java: "java", js: "javascript",
  json: "json", jsx: "javascript", md: "markdown", py: "python", rs: "rust", sh: "bash", sql: "sql", ts: "typescript",
  tsx: "typescript", xml: "xml", yaml: "yaml", yml: "yaml",
};

/** Guess the language of an argument by its name, or by the name of the file that it is written to. */
function languageOf(name: string, fields: object): string {
  if (name === "command" || name === "cmd") return "bash";
  if (name === "sql" || name === "query") return "sql";
  const path = Object.entries(fields).find(([key, each]) => /path|file/i.test(key) && typeof each === "string")?.[1] as string;
  return LANGUAGES[/\.([a-z]+)$/i.exec(path ?? "")?.[1]?.toLowerCase() ?? ""] ?? (name === "code" ? "python" : "");
}

export function Prose({ text }: { text: string }) {
  const rich = useRich();
  return <Folded text={text}>{(shown) => (rich ? <rich.Markdown text={shown} /> : <Plain text={shown} />)}</Folded>;
}

/** What a tool returned: JSON as a tree, anything else as a program prints it. */
export function Output({ text }: { text: string }) {
  const rich = useRich();
  const value = parsed(text);
  if (value !== undefined) return <Value value={value} search />;
  return <Folded text={text}>{(shown) => (rich ? <rich.Terminal text={shown} /> : <Plain text={shown} />)}</Folded>;
}

function parsed(text: string): unknown {
  if (!/^\s*[{[]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

const Plain: FunctionComponent<{ text: string }> = ({ text }) => (
  <span class="text" dir="auto">
    {visible(text)}
  </span>
);

/** Show the beginning of a long text, and its size. */
function Folded({ text, children }: { text: string; children: (shown: string) => ComponentChildren }) {
  const [isWhole, setWhole] = useState(false);
  const lines = useMemo(() => endOfLine(text, LONG_LINES) < text.length, [text]);
  if (isWhole || (text.length <= LONG && !lines)) return <>{children(text)}</>;
  const paragraph = text.lastIndexOf("\n", FOLDED);
  const most = paragraph > FOLDED / 2 ? paragraph : FOLDED;
  return (
    <>
      {children(text.slice(0, Math.min(most, endOfLine(text, FOLDED_LINES))))}
      <button type="button" class="quiet" onClick={() => setWhole(true)}>
        Show all ({bytes(new Blob([text]).size)})
      </button>
    </>
  );
}

/** Where a line ends, or the whole text if it has fewer. */
function endOfLine(text: string, line: number): number {
  let end = -1;
  for (let count = 0; count < line; count += 1) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) return text.length;
  }
  return end;
}

function Image({ part }: { part: Part }) {
  const name = part.name ?? part.media_type ?? "image";
  if (part.url && /^data:image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)[;,]/i.test(part.url)) {
    return (
      <figure class="picture">
        <img src={part.url} alt={visible(part.name ?? "Image in the message")} />
      </figure>
    );
  }
  // An image elsewhere is not fetched: loading it would tell its server that somebody reads this.
  return (
    <p>
      <span class="muted">image: </span>
      {part.url ? <Link url={part.url}>{visible(part.name ?? part.url)}</Link> : visible(part.text || name)}
    </p>
  );
}

function Attachment({ part }: { part: Part }) {
  const name = part.name ?? part.media_type ?? "file";
  const isInline = part.url?.startsWith("data:");
  return (
    <p>
      <span class="muted">file: </span>
      {isInline ? (
        <a href={part.url!} download={part.name ?? "file"}>
          {visible(name)}
        </a>
      ) : part.url ? (
        <Link url={part.url}>{visible(name)}</Link>
      ) : (
        visible(part.text || name)
      )}
      {isInline && <span class="muted"> ({bytes(Math.floor(part.url!.length * 0.75))})</span>}
    </p>
  );
}

/** A part as text, for the clipboard. */
function plain(part: Part): string {
  const value = (part.value ?? null) === null ? "" : typeof part.value === "string" ? part.value : JSON.stringify(part.value, null, 2);
  if (part.kind === "tool_call") return `${part.name ?? "tool"}(${value})`;
  return [part.text, value, ...(part.parts ?? []).map(plain)].filter(Boolean).join("\n") || part.url || "";
}

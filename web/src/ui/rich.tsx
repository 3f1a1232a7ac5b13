// Markdown, highlighted code and terminal output, as nodes. Nothing is rendered as HTML, so nothing has to be sanitised:
// tags in a text are shown as text, and only http(s) and mailto links can be followed. Loaded on first use.
import Anser from "anser";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { visible } from "../base/format";
import { Copy } from "./bits";
import { Unified } from "./diff";
import { Link } from "./link";

const lowlight = createLowlight({
  bash, cpp, css, go, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml,
});
const MOST_HIGHLIGHTED = 50_000;
const DEEPEST = 40;

/** Formulas stay as they are: Markdown would take their underscores and backslashes away. */
const formula = {
  name: "formula",
  level: "inline" as const,
  start: (text: string) => text.search(/\$|\\[([]/),
  tokenizer(text: string) {
    const found = /^(?:\$\$[^$]+\$\$|\$(?!\s)[^$\n]*[^\s$\\]\$(?!\d)|\\\([^\n]+?\\\)|\\\[[\s\S]+?\\\])/.exec(text);
    return found ? { type: "formula", raw: found[0], text: found[0] } : undefined;
  },
};
const marked = new Marked({ gfm: true, extensions: [formula] });

export function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => marked.lexer(text), [text]);
  return (
    <div class="markdown" dir="auto">
      <Blocks tokens={tokens} depth={0} />
    </div>
  );
}

function Blocks({ tokens, depth }: { tokens: readonly Token[] | undefined; depth: number }): ComponentChildren {
  if (depth > DEEPEST) return (tokens ?? []).map((each) => visible(each.raw)).join("");
  return (tokens ?? []).map((each, index) => <Block key={index} token={each} depth={depth + 1} />);
}

function Block({ token, depth }: { token: Token; depth: number }): ComponentChildren {
  const inside = () => <Blocks tokens={"tokens" in token ? token.tokens : []} depth={depth} />;
  switch (token.type) {
    case "heading":
      return <p class={`heading level-${(token as Tokens.Heading).depth}`}>{inside()}</p>;
    case "paragraph":
      return <p>{inside()}</p>;
    case "code":
      return <Code text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    case "blockquote":
      return <blockquote>{inside()}</blockquote>;
    case "list": {
      const list = token as Tokens.List;
      const items = list.items.map((item, index) => (
        <li key={index} class={item.task ? "task" : undefined}>
          {item.task && <span role="img" aria-label={item.checked ? "done" : "open"}>{item.checked ? "☑" : "☐"} </span>}
          <Blocks tokens={item.tokens.filter((each) => each.type !== "checkbox")} depth={depth} />
        </li>
      ));
      return list.ordered ? <ol start={list.start === "" ? 1 : list.start}>{items}</ol> : <ul>{items}</ul>;
    }
    case "table": {
      const table = token as Tokens.Table;
      const cell = (each: Tokens.TableCell, index: number) => {
        const Cell = each.header ? "th" : "td";
        return (
          <Cell key={index} class={each.align ?? undefined}>
            <Blocks tokens={each.tokens} depth={depth} />
          </Cell>
        );
      };
      return (
        <div class="wide" role="group" aria-label="Table" tabIndex={0}>
          <table>
            <thead>
              <tr>{table.header.map(cell)}</tr>
            </thead>
            <tbody>
              {table.rows.map((row, index) => (
                <tr key={index}>{row.map(cell)}</tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    }
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    case "strong":
      return <strong>{inside()}</strong>;
    case "em":
      return <em>{inside()}</em>;
    case "del":
      return <del>{inside()}</del>;
    case "codespan":
      return <code>{visible((token as Tokens.Codespan).text)}</code>;
    case "br":
      return <br />;
    case "link":
      return <Link url={(token as Tokens.Link).href}>{inside()}</Link>;
    case "image":
      // Not fetched: loading it would tell a stranger's server that somebody reads this.
      return <Link url={(token as Tokens.Image).href}>image: {(token as Tokens.Image).text || (token as Tokens.Image).href}</Link>;
    case "text":
      return "tokens" in token && token.tokens ? inside() : visible((token as Tokens.Text).text);
    case "escape":
      return visible((token as Tokens.Escape).text);
    default:
      return visible(token.raw);
  }
}

/** Source code. A diff is shown as a diff, whatever it claims to be. */
export function Code({ text, language = "" }: { text: string; language?: string }) {
  const name = language.trim().split(/[\s,{]/, 1)[0]!.toLowerCase();
  if (name === "diff" || name === "patch" || (name === "" && isDiff(text))) return <Unified text={text} label="Diff" />;
  const isKnown = lowlight.registered(name) && text.length <= MOST_HIGHLIGHTED;
  return (
    <div class="copyable">
      <pre class="code" tabIndex={0}>
        <code>{isKnown ? <Highlighted text={text} language={name} /> : visible(text)}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

interface Node {
  type: string;
  value?: string;
  properties?: { className?: string[] };
  children?: Node[];
}

function Highlighted({ text, language }: { text: string; language: string }) {
  const tree = useMemo(() => lowlight.highlight(language, text) as unknown as Node, [text, language]);
  return <>{nodes(tree.children)}</>;
}

function nodes(children: readonly Node[] | undefined): ComponentChildren {
  return (children ?? []).map((each, index) =>
    each.type === "text" ? (
      visible(each.value ?? "")
    ) : (
      <span key={index} class={each.properties?.className?.join(" ")}>
        {nodes(each.children)}
      </span>
    ),
  );
}

/** What a program printed, with its colours. */
export function Terminal({ text }: { text: string }) {
  if (isDiff(text)) return <Unified text={text} label="Diff" />;
  const pieces = text.includes("\x1b[") ? Anser.ansiToJson(text, { use_classes: true, remove_empty: true }) : null;
  return (
    <pre class="terminal" tabIndex={0}>
      {pieces
        ? pieces.map((each, index) => (
            <span key={index} class={[each.fg, each.bg && `${each.bg}-bg`, ...each.decorations].filter(Boolean).join(" ")}>
              {visible(each.content)}
            </span>
          ))
        : visible(text)}
    </pre>
  );
}

/** Whether a text is, or contains, a unified diff or a patch as Codex writes it. */
function isDiff(text: string): boolean {
  if (text.startsWith("*** Begin Patch\n")) return true;
  return /^(diff --git |--- [^\n]+\n\+\+\+ |@@ -\d)/m.test(text.slice(0, 2000)) && /^@@ -\d+(,\d+)? \+\d+/m.test(text);
}

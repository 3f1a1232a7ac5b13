// The files of a snapshot: folders on the left, one file on the right. Nothing is restored to disk.
import { useEffect, useMemo, useState } from "preact/hooks";

import { at, epoch, raw, type Problem } from "../../base/api";
import { bytes } from "../../base/format";
import { asProblem, useGet } from "../../base/query";
import { route, select } from "../../base/route";
import type { Entry } from "../../base/shapes";
import { Answer, Empty, Failure, Loading } from "../../ui/states";

const MOST_TEXT = 400_000;
const IMAGES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  avif: "image/avif",
  svg: "image/svg+xml",
};

export function Browser({ snapshot }: { snapshot: string }) {
  const path = route.value.query["path"] ?? "";
  const isFile = route.value.query["file"] === "1";
  const folder = isFile ? path.split("/").slice(0, -1).join("/") : path;
  const asked = useGet<{ entries: Entry[] }>(at(["snapshots", snapshot, "ls"], { path: folder }));
  const parts = folder ? folder.split("/") : [];
  return (
    <div class="browser">
      <nav class="crumbs" aria-label="Folder">
        <button type="button" class="link" onClick={() => select({ path: null, file: null })}>
          files
        </button>
        {parts.map((part, index) => (
          <span key={index}>
            {" / "}
            <button
              type="button"
              class="link"
              onClick={() => select({ path: parts.slice(0, index + 1).join("/"), file: null })}
            >
              {part}
            </button>
          </span>
        ))}
      </nav>
      <div class="browser-panes">
        <Answer asked={asked} what="Loading folder">
          {({ entries }) => (
            <ul class="entries" aria-label="Files">
              {entries.length === 0 && <li class="muted">empty folder</li>}
              {entries.toSorted(inOrder).map((entry) => (
                <li key={entry.path}>
                  <button
                    type="button"
                    class={`entry ${entry.kind}`}
                    aria-current={entry.path === path ? "true" : undefined}
                    disabled={entry.kind === "link"}
                    onClick={() => select({ path: entry.path, file: entry.kind === "file" ? "1" : null })}
                  >
                    <span class="cut">
                      {entry.path.split("/").at(-1)}
                      {entry.kind === "folder" ? "/" : ""}
                      {entry.kind === "link" && <span class="muted"> → {entry.target}</span>}
                    </span>
                    {entry.kind === "file" && <span class="muted small">{bytes(entry.size)}</span>}
                  </button>
                </li>
              ))}
            </ul>
          )}
        </Answer>
        {isFile ? (
          <File key={`${snapshot}/${path}`} snapshot={snapshot} path={path} />
        ) : (
          <Empty title="Choose a file">Text and images are previewed; every file can be downloaded.</Empty>
        )}
      </div>
    </div>
  );
}

function inOrder(one: Entry, other: Entry): number {
  if ((one.kind === "folder") !== (other.kind === "folder")) return one.kind === "folder" ? -1 : 1;
  return one.path < other.path ? -1 : 1;
}

function File({ snapshot, path }: { snapshot: string; path: string }) {
  const [data, setData] = useState<ArrayBuffer | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const era = epoch.value;
  useEffect(() => {
    const stop = new AbortController();
    setProblem(null);
    raw("GET", at(["snapshots", snapshot, "cat"], { path }), { signal: stop.signal })
      .then((answer) => answer.arrayBuffer())
      .then(setData, (error: unknown) => !stop.signal.aborted && setProblem(asProblem(error)));
    return () => stop.abort();
  }, [snapshot, path, era]);
  if (problem) return <Failure problem={problem} />;
  if (!data) return <Loading what="Loading file" />;
  return <Preview path={path} data={data} />;
}

function Preview({ path, data }: { path: string; data: ArrayBuffer }) {
  const name = path.split("/").at(-1) ?? path;
  const image = IMAGES[name.split(".").at(-1)?.toLowerCase() ?? ""];
  // As an <img>, scripts inside an SVG do not run.
  const url = useMemo(() => URL.createObjectURL(new Blob([data], { type: image ?? "application/octet-stream" })), [data]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  const text = useMemo(() => (image ? null : decoded(data)), [data]);
  return (
    <section class="preview" aria-label={name}>
      <header>
        <strong class="cut">{name}</strong>
        <span class="muted small">{bytes(data.byteLength)}</span>
        <a class="button" href={url} download={name}>
          Download
        </a>
      </header>
      {image ? (
        <img src={url} alt={name} />
      ) : text === null ? (
        <Empty title="No preview">This file can only be downloaded.</Empty>
      ) : (
        <pre class="code" tabIndex={0} aria-label={`Content of ${name}`}>
          {text.slice(0, MOST_TEXT).split("\n").map((line, index) => (
            <span class="code-line" key={index}>
              {line}
              {"\n"}
            </span>
          ))}
        </pre>
      )}
      {text !== null && text.length > MOST_TEXT && (
        <p class="muted">The file is truncated; download it to see the rest.</p>
      )}
    </section>
  );
}

function decoded(data: ArrayBuffer): string | null {
  if (new Uint8Array(data.slice(0, 8000)).includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

// One document: read, edit, and browse its versions.
import { useState } from "preact/hooks";

import { at, send } from "../../base/api";
import { plural, stamp } from "../../base/format";
import { useChanges } from "../../base/live";
import { asProblem, useGet } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import type { MemoryDocument, MemoryVersion, Provenance } from "../../base/shapes";
import { Figure, Tabs, Tags, Time } from "../../ui/bits";
import { Confirm } from "../../ui/dialog";
import { Unified } from "../../ui/diff";
import { Value } from "../../ui/json";
import { Prose } from "../../ui/message";
import { Answer, Empty } from "../../ui/states";
import { isOver } from "./memory";

type Tab = "text" | "versions" | "edit";

const OWN = new Set(["tags", "auto_load", "created_at", "updated_at", "expires_at"]);

export function Document({ id, namespace, onChange }: { id: string; namespace: string; onChange: () => void }) {
  const { query } = route.value;
  const version = query["version"];
  const tab = (["versions", "edit"].find((each) => each === query["tab"]) ?? "text") as Tab;
  const asked = useGet<MemoryDocument>(at(["memory", id], { namespace, version, include_expired: true }));
  const history = useGet<{ versions: MemoryVersion[] }>(at(["memory", id, "history"], { namespace }));
  const [asking, ask] = useState(false);
  useChanges(
    (event) => event.kind.startsWith("memory") && tab !== "edit",
    () => {
      asked.reload();
      history.reload();
    },
  );
  const changed = () => {
    asked.reload();
    history.reload();
    onChange();
  };
  const to = (name: Tab) => href(["memory", id], { ...query, tab: name === "text" ? null : name, version: null });
  return (
    <section class="document" aria-label={id}>
      <a class="back" href={href(["memory"], { ...query, tab: null, version: null })}>
        All documents
      </a>
      <h2>{id}</h2>
      <Tabs
        label="Document"
        now={tab}
        to={to}
        tabs={[
          ["text", "Text"],
          ["edit", "Edit"],
          ["versions", <>Versions <small>{history.data?.versions.length ?? ""}</small></>],
        ]}
      />
      <div class="scroll" tabIndex={0} role="group" aria-label="Document">
        {tab === "versions" ? (
          <Versions id={id} namespace={namespace} history={history} onChange={changed} />
        ) : (
          <Answer asked={asked} what="Loading document">
            {(document) =>
              tab === "edit" ? (
                <Edit
                  key={document.version}
                  document={document}
                  namespace={namespace}
                  onDone={() => {
                    changed();
                    select({ tab: null });
                  }}
                />
              ) : (
                <>
                  <Facts document={document} />
                  {version && (
                    <p class="muted">
                      This is version {version}. <a href={to("text")}>Show the newest</a>
                    </p>
                  )}
                  <div class="text-body">
                    <Prose text={document.content} />
                  </div>
                  <p class="buttons tight">
                    <button type="button" class="danger" onClick={() => ask(true)}>
                      Delete
                    </button>
                  </p>
                </>
              )
            }
          </Answer>
        )}
      </div>
      {asking && (
        <Confirm
          title={`Delete ${id}`}
          verb="Delete"
          danger
          onClose={() => ask(false)}
          action={async () => {
            await send("DELETE", at(["memory", id], { namespace }));
            onChange();
            go(["memory"], { namespace });
          }}
        >
          <p>Agents no longer find it. Its versions are kept until it is forgotten.</p>
        </Confirm>
      )}
    </section>
  );
}

function Facts({ document }: { document: MemoryDocument }) {
  const { metadata } = document;
  const rest = Object.fromEntries(Object.entries(metadata).filter(([name]) => !OWN.has(name)));
  return (
    <>
      <dl class="figures small">
        <Figure label="version" value={document.version} />
        <Figure label="changed" value={<Time at={metadata.updated_at} />} />
        <Figure label="loaded" value={metadata.auto_load ? "always" : "on search"} />
        <Figure
          label="expires"
          value={metadata.expires_at ? <span class={isOver(document) ? "bad" : ""}>{stamp(metadata.expires_at)}</span> : "never"}
        />
        {metadata.tags && metadata.tags.length > 0 && <Figure label="tags" value={<Tags tags={metadata.tags} />} />}
      </dl>
      <Origin provenance={document.provenance} />
      {Object.keys(rest).length > 0 && (
        <div class="box">
          <Value name="metadata" value={rest} open={false} />
        </div>
      )}
    </>
  );
}

/** The provenance of a version. */
function Origin({ provenance }: { provenance: Provenance | null }) {
  if (!provenance || Object.keys(provenance).length === 0) return null;
  const { run, step, source, trust, derived_from: from } = provenance;
  return (
    <p class="origin">
      {source && <>from {source} </>}
      {run && (
        <>
          in run <a href={href(["runs", run])}>{run}</a>{" "}
        </>
      )}
      {step !== undefined && <>at step {step} </>}
      {from && from.length > 0 && (
        <>
          drawn from{" "}
          {from.map((each, index) => (
            <span key={each}>
              {index > 0 && ", "}
              <a href={href(["memory", each])}>{each}</a>
            </span>
          ))}{" "}
        </>
      )}
      {trust && <span class={`tag ${trust === "low" ? "warn" : trust === "high" ? "good" : ""}`}>trust: {trust}</span>}
    </p>
  );
}

function Versions({
  id,
  namespace,
  history,
  onChange,
}: {
  id: string;
  namespace: string;
  history: ReturnType<typeof useGet<{ versions: MemoryVersion[] }>>;
  onChange: () => void;
}) {
  const { query } = route.value;
  const [trouble, setTrouble] = useState("");
  const newest = history.data?.versions[0]?.version;
  const a = Number(query["a"] ?? history.data?.versions.find((each) => each.document && each.version !== newest)?.version ?? 0);
  const b = Number(query["b"] ?? newest ?? 0);
  const diff = useGet<{ text: string; added_tags: string[]; removed_tags: string[] }>(
    a > 0 && b > 0 && a !== b ? at(["memory", id, "diff"], { namespace, a, b }) : null,
  );
  return (
    <Answer asked={history} what="Loading versions">
      {({ versions }) => (
        <>
          <ol class="versions">
            {versions.map((each) => (
              <li key={each.version} class={each.operation}>
                <a href={href(["memory", id], { ...query, tab: null, version: each.version })}>
                  <strong>{each.version}</strong>
                </a>
                <span>
                  {each.operation} <Time at={each.changed_at_us} />
                  <Origin provenance={each.provenance} />
                </span>
                <span class="buttons tight">
                  {each.document && (
                    <>
                      <label class="small">
                        <input type="radio" name="a" checked={each.version === a} onChange={() => select({ a: each.version })} /> from
                      </label>
                      <label class="small">
                        <input type="radio" name="b" checked={each.version === b} onChange={() => select({ b: each.version })} /> to
                      </label>
                    </>
                  )}
                  {each.document && each.version !== newest && (
                    <button
                      type="button"
                      class="quiet"
                      onClick={() =>
                        send("POST", at(["memory", id, "restore"], { namespace }), { version: each.version }).then(
                          onChange,
                          (error: unknown) => setTrouble(asProblem(error).message),
                        )
                      }
                    >
                      Restore
                    </button>
                  )}
                </span>
              </li>
            ))}
          </ol>
          {trouble && (
            <p class="trouble" role="alert">
              {trouble}
            </p>
          )}
          {a > 0 && b > 0 && a !== b ? (
            <>
              <h3>
                From version {a} to {b}
              </h3>
              <Answer asked={diff} what="Comparing">
                {(found) => (
                  <>
                    {found.added_tags.map((tag) => (
                      <span key={tag} class="tag added">
                        + {tag}
                      </span>
                    ))}
                    {found.removed_tags.map((tag) => (
                      <span key={tag} class="tag removed">
                        − {tag}
                      </span>
                    ))}
                    <Unified text={found.text} label={`From version ${a} to ${b}`} />
                  </>
                )}
              </Answer>
            </>
          ) : (
            <Empty title="Nothing to compare">{plural(versions.length, "version")} so far.</Empty>
          )}
        </>
      )}
    </Answer>
  );
}

interface Fields {
  content: string;
  tags: string;
  auto_load: boolean;
  expires_at: string;
}

function Edit({ document, namespace, onDone }: { document: MemoryDocument; namespace: string; onDone: () => void }) {
  const { metadata } = document;
  const [fields, setFields] = useState<Fields>({
    content: document.content,
    tags: (metadata.tags ?? []).join(", "),
    auto_load: Boolean(metadata.auto_load),
    expires_at: metadata.expires_at ? new Date(metadata.expires_at).toISOString().slice(0, 16) : "",
  });
  const [trouble, setTrouble] = useState("");
  const rest = Object.fromEntries(Object.entries(metadata).filter(([name]) => !OWN.has(name)));
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save(document.id, namespace, fields, { if_version: document.version, metadata: rest }).then(onDone, (error: unknown) =>
          setTrouble(asProblem(error).message),
        );
      }}
    >
      <Form fields={fields} onChange={setFields} />
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      <p class="buttons">
        <button type="submit" class="primary">
          Save new version
        </button>
      </p>
    </form>
  );
}

export function NewDocument({ namespace, onClose, onDone }: { namespace: string; onClose: () => void; onDone: () => void }) {
  const [id, setId] = useState("");
  const [fields, setFields] = useState<Fields>({ content: "", tags: "", auto_load: false, expires_at: "" });
  return (
    <Confirm
      title="New document"
      verb="Save"
      onClose={onClose}
      action={async () => {
        await save(id, namespace, fields, { if_version: 0 });
        onDone();
        go(["memory", id], { namespace });
      }}
    >
      <label class="field">
        Name
        <input type="text" required value={id} onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <Form fields={fields} onChange={setFields} />
    </Confirm>
  );
}

function Form({ fields, onChange }: { fields: Fields; onChange: (fields: Fields) => void }) {
  return (
    <>
      <label class="field">
        Text
        <textarea rows={10} required value={fields.content} onInput={(event) => onChange({ ...fields, content: event.currentTarget.value })} />
      </label>
      <label class="field">
        Tags, separated by commas
        <input type="text" value={fields.tags} onInput={(event) => onChange({ ...fields, tags: event.currentTarget.value })} />
      </label>
      <label class="check">
        <input type="checkbox" checked={fields.auto_load} onChange={(event) => onChange({ ...fields, auto_load: event.currentTarget.checked })} />{" "}
        Load into every context
      </label>
      <label class="field">
        Expires (UTC)
        <input type="datetime-local" value={fields.expires_at} onInput={(event) => onChange({ ...fields, expires_at: event.currentTarget.value })} />
      </label>
    </>
  );
}

function save(id: string, namespace: string, fields: Fields, more: Record<string, unknown>): Promise<unknown> {
  return send("PUT", at(["memory", id], { namespace }), {
    content: fields.content,
    tags: fields.tags.split(",").map((tag) => tag.trim()).filter(Boolean),
    auto_load: fields.auto_load,
    expires_at: fields.expires_at ? `${fields.expires_at}:00Z` : null,
    provenance: { source: "dashboard" },
    ...more,
  });
}

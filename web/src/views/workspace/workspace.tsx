// Snapshots of the folders that agents work in, and checkpoints of sandboxes: browse one, or compare two.
import { useState } from "preact/hooks";

import { at } from "../../base/api";
import { bytes, exact, plural, stamp } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useChanges } from "../../base/live";
import { useGet, usePages } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import type { FileChange, FoundSecret, SandboxCheckpoint, SessionOutput, SnapshotInfo } from "../../base/shapes";
import { Copy, Crumb, Head, Id, Name, SecretsTag, Tabs, Tags, Time } from "../../ui/bits";
import { Rows } from "../../ui/rows";
import { Answer, Empty } from "../../ui/states";
import { Browser } from "./browser";
import { FileChanges } from "./changes";

const idOf = (snapshot: SnapshotInfo) => `${snapshot.id}@${snapshot.taken_at_us}`;

/** Query value: compare with an empty folder. */
const NOTHING = "nothing";

function useSnapshots() {
  return usePages<SnapshotInfo>(at(["snapshots"], { limit: 200 }), "snapshots", idOf);
}

export function Workspace() {
  const { query } = route.value;
  const tab = query["tab"] === "sandboxes" ? "sandboxes" : "snapshots";
  return (
    <div class="view">
      <Head title="Workspace">
        <p class="muted">
          {tab === "snapshots"
            ? "Snapshots of folders. Those saved with a checkpoint are also shown on its thread."
            : "Checkpoints of sandboxes: the files of CLI agents after each run, also of other machines."}
        </p>
      </Head>
      <Tabs
        label="Workspace"
        now={tab}
        to={(name) => href(["workspace"], { tab: name === "snapshots" ? null : name })}
        tabs={[
          ["snapshots", "Snapshots"],
          ["sandboxes", "Sandboxes"],
        ]}
      />
      {tab === "snapshots" ? <Snapshots /> : <Sandboxes tag={query["tag"]} />}
    </div>
  );
}

function Sandboxes({ tag }: { tag: string | undefined }) {
  const listed = usePages<SandboxCheckpoint>(at(["sandboxes", "checkpoints"], { limit: 200, tag }), "checkpoints", (each) => each.id);
  const [place, setPlace] = useState(0);
  useChanges((event) => event.kind === "sandbox_checkpoint", listed.reload, 1000);
  const open = (each: SandboxCheckpoint) => ["workspace", each.hash];
  return (
    <>
      {tag && (
        <p class="muted">
          Session {tag} · <a href={href(["workspace"], { tab: "sandboxes" })}>all sessions</a>
        </p>
      )}
      <Answer asked={listed} what="Loading checkpoints">
        {(checkpoints) =>
          checkpoints.length === 0 ? (
            <Empty title="No checkpoints of sandboxes yet">
              <pre>treering run --prompt "Tidy the notes" --agent claude</pre>
            </Empty>
          ) : (
            <div class="table sandboxes-table">
              <div class="table-head" aria-hidden="true">
                <span>checkpoint</span>
                <span>session</span>
                <span>agent</span>
                <span>comment</span>
                <span class="number">files</span>
                <span class="number">size</span>
                <span>taken</span>
              </div>
              <Rows
                label="Checkpoints"
                items={checkpoints}
                height={40}
                tall={86}
                idOf={(each) => each.id}
                selected={place}
                onSelect={setPlace}
                onOpen={(index) => go(open(checkpoints[index]!), { checkpoint: checkpoints[index]!.id })}
                onEnd={listed.more}
                row={(each) => (
                  <a class="line" href={href(open(each), { checkpoint: each.id })}>
                    <Id id={each.id} />
                    <span class="cut name">{each.tag}</span>
                    <span class="cut agent-model">
                      {each.agent_type} {each.model}
                    </span>
                    <span class="cut note">
                      {each.comment} <SecretsTag secrets={each.secrets} />
                    </span>
                    <span class="number">
                      {exact(each.files ?? 0)}
                      <span class="unit"> {(each.files ?? 0) === 1 ? "file" : "files"}</span>
                    </span>
                    <span class="number">{bytes(each.size_bytes ?? 0)}</span>
                    <span class="muted since">
                      <Time at={each.timestamp} />
                    </span>
                  </a>
                )}
              />
            </div>
          )
        }
      </Answer>
    </>
  );
}

function Snapshots() {
  const listed = useSnapshots();
  const [place, setPlace] = useState(0);
  useChanges((event) => event.kind === "snapshot", listed.reload, 1000);
  return (
      <Answer asked={listed} what="Loading snapshots">
        {(snapshots) =>
          snapshots.length === 0 ? (
            <Empty title="No snapshots yet">
              <pre>{'store.workspace.snapshot("./project", note="before the refactoring")'}</pre>
            </Empty>
          ) : (
            <div class="table snapshots-table">
              <div class="table-head" aria-hidden="true">
                <span>snapshot</span>
                <span>workspace</span>
                <span>note</span>
                <span class="number">files</span>
                <span class="number">size</span>
                <span>taken</span>
              </div>
              <Rows
                label="Snapshots"
                items={snapshots}
                height={40}
                tall={86}
                idOf={idOf}
                selected={place}
                onSelect={setPlace}
                onOpen={(index) => go(["workspace", snapshots[index]!.id])}
                onEnd={listed.more}
                row={(snapshot) => (
                  <a class="line" href={href(["workspace", snapshot.id])}>
                    <Id id={snapshot.id} />
                    <span class="cut name" title={snapshot.workspace}>
                      <Name text={snapshot.workspace} />
                    </span>
                    <span class="cut note">
                      {snapshot.note} <Tags tags={snapshot.tags} /> <SecretsTag secrets={snapshot.secrets} />
                    </span>
                    <span class="number">
                      {exact(snapshot.files)}
                      <span class="unit"> {snapshot.files === 1 ? "file" : "files"}</span>
                    </span>
                    <span class="number">{bytes(snapshot.size_bytes)}</span>
                    <span class="muted since">
                      <Time at={snapshot.taken_at_us} />
                    </span>
                  </a>
                )}
              />
            </div>
          )
        }
      </Answer>
  );
}

/** Which files of a snapshot seem to hold keys or passwords. */
function Secrets({ secrets }: { secrets: readonly FoundSecret[] | undefined }) {
  if (!secrets?.length) return null;
  return (
    <details class="secrets">
      <summary>
        <SecretsTag secrets={secrets} /> in these files; a copy of them takes these along
      </summary>
      <ul>
        {secrets.map((each) => (
          <li key={`${each.path}:${each.line}:${each.rule}:${each.hint}`}>
            <code>
              {each.path}:{each.line}
            </code>{" "}
            {each.rule} <span class="muted">{each.hint}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** What a checkpoint of a sandbox says besides its files. */
function CheckpointFacts({ id }: { id: string }) {
  const asked = useGet<SandboxCheckpoint>(at(["sandboxes", "checkpoints", id]));
  return (
    <Answer asked={asked} what="Loading the checkpoint">
      {(each) => (
        <>
        <p class="muted">
          Checkpoint <Id id={each.id} /> <Copy text={each.id} label="Copy id" /> of session{" "}
          <a href={href(["workspace"], { tab: "sandboxes", tag: each.tag })}>{each.tag}</a>
          {each.agent_type && `, ${each.agent_type}`} {each.model} {each.workspace_mode && `(${each.workspace_mode})`}, taken{" "}
          {stamp(each.timestamp)}
          {each.comment && `: ${each.comment}`}
          {each.parent_id && (
            <>
              {" "}
              · after <Id id={each.parent_id} />
            </>
          )}
        </p>
        {each.sandbox_id && (
          <p class="muted">
            Sandbox <Id id={each.sandbox_id} /> <Copy text={each.sandbox_id} label="Copy id of sandbox" />
            {each.provider && each.provider !== "local" && ` of ${each.provider}`}
          </p>
        )}
        <Output checkpoint={each} />
        <Secrets secrets={each.secrets} />
        </>
      )}
    </Answer>
  );
}

/** Links to what the agent left in its output folder. */
function Output({ checkpoint }: { checkpoint: SandboxCheckpoint }) {
  const asked = useGet<SessionOutput>(at(["sandboxes", "checkpoints", checkpoint.id, "output"]));
  const files = asked.data?.files ?? [];
  if (files.length === 0) return null;
  const to = (path: string | null) => {
    const file = path === null ? null : "1";
    const place = path === null ? OUTPUT : `${OUTPUT}/${path}`;
    return href(["workspace", checkpoint.hash], { checkpoint: checkpoint.id, path: place, file });
  };
  return (
    <p class="muted">
      Output:{" "}
      {files.slice(0, SHOWN_OUTPUT).map((each, index) => (
        <span key={each.path}>
          {index > 0 && ", "}
          <a href={to(each.path)}>{each.path}</a> ({bytes(each.size_bytes)})
        </span>
      ))}
      {files.length > SHOWN_OUTPUT && (
        <>
          {" "}
          and <a href={to(null)}>{plural(files.length - SHOWN_OUTPUT, "more file")}</a>
        </>
      )}
    </p>
  );
}

const OUTPUT = "workspace/output";
const SHOWN_OUTPUT = 10;

export function Snapshot({ id }: { id: string }) {
  const { query } = route.value;
  const listed = useSnapshots();
  const known = listed.data?.find((each) => each.id === id);
  const tab = query["tab"] === "diff" ? "diff" : "files";
  useKeys({ Escape: () => go(["workspace"]) });
  return (
    <div class="view">
      <Head
        above={
          <>
            <Crumb path={["workspace"]}>Workspace</Crumb> / {known?.workspace ?? "snapshot"}
          </>
        }
        title={known?.note ?? <Id id={id} />}
      >
        <p class="muted">
          <Id id={id} /> <Copy text={id} label="Copy id" />
          {known && (
            <>
              {" "}
              {plural(known.files, "file")}, {bytes(known.size_bytes)}, taken {stamp(known.taken_at_us)} <Tags tags={known.tags} />
            </>
          )}
        </p>
        {query["checkpoint"] ? <CheckpointFacts id={query["checkpoint"]} /> : <Secrets secrets={known?.secrets} />}
      </Head>
      <Tabs
        label="Snapshot"
        now={tab}
        to={(name) => href(["workspace", id], { ...query, tab: name === "files" ? null : name })}
        tabs={[
          ["files", "Files"],
          ["diff", "Diff"],
        ]}
      />
      {tab === "files" ? <Browser snapshot={id} /> : <Diff id={id} snapshots={listed.data ?? []} />}
    </div>
  );
}

function Diff({ id, snapshots }: { id: string; snapshots: readonly SnapshotInfo[] }) {
  const mine = snapshots.find((each) => each.id === id);
  const earlier = snapshots.find(
    (each) => mine && each.workspace === mine.workspace && each.taken_at_us < mine.taken_at_us && each.id !== id,
  );
  const chosen = route.value.query["with"];
  const other = chosen === NOTHING ? "" : (chosen ?? earlier?.id ?? "");
  const asked = useGet<{ changes: FileChange[] }>(at(["snapshots", "diff"], { a: other, b: id }));
  return (
    <div class="scroll pad" tabIndex={0} role="group" aria-label="Diff">
      <p>
        <label>
          From{" "}
          <select value={other} onChange={(event) => select({ with: event.currentTarget.value || NOTHING })}>
            <option value="">an empty folder</option>
            {snapshots
              .filter((each) => each.id !== id)
              .map((each) => (
                <option key={idOf(each)} value={each.id}>
                  {stamp(each.taken_at_us)} {each.note ?? each.workspace}
                </option>
              ))}
            {other && !snapshots.some((each) => each.id === other) && <option value={other}>{other}</option>}
          </select>
        </label>{" "}
        to this snapshot
      </p>
      <Answer asked={asked} what="Comparing">
        {({ changes }) =>
          changes.length === 0 ? (
            <Empty title="No differences">Both snapshots have the same files.</Empty>
          ) : (
            <>
              <p class="muted">{plural(changes.length, "change")}</p>
              <FileChanges changes={changes} />
            </>
          )
        }
      </Answer>
    </div>
  );
}

// Snapshots of the folders that agents work in: browse one, or compare two.
import { useState } from "preact/hooks";

import { at } from "../../base/api";
import { bytes, exact, plural, stamp } from "../../base/format";
import { useKeys } from "../../base/keys";
import { useChanges } from "../../base/live";
import { useGet, usePages } from "../../base/query";
import { go, href, route, select } from "../../base/route";
import type { FileChange, SnapshotInfo } from "../../base/shapes";
import { Copy, Crumb, Head, Id, Tabs, Tags, Time } from "../../ui/bits";
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
  const listed = useSnapshots();
  const [place, setPlace] = useState(0);
  useChanges((event) => event.kind === "snapshot", listed.reload, 1000);
  return (
    <div class="view">
      <Head title="Workspace">
        <p class="muted">Snapshots of folders. Those saved with a checkpoint are also shown on its thread.</p>
      </Head>
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
                idOf={idOf}
                selected={place}
                onSelect={setPlace}
                onOpen={(index) => go(["workspace", snapshots[index]!.id])}
                onEnd={listed.more}
                row={(snapshot) => (
                  <a class="line" href={href(["workspace", snapshot.id])}>
                    <Id id={snapshot.id} />
                    <span class="cut">{snapshot.workspace}</span>
                    <span class="cut">
                      {snapshot.note} <Tags tags={snapshot.tags} />
                    </span>
                    <span class="number">{exact(snapshot.files)}</span>
                    <span class="number">{bytes(snapshot.size_bytes)}</span>
                    <span class="muted">
                      <Time at={snapshot.taken_at_us} />
                    </span>
                  </a>
                )}
              />
            </div>
          )
        }
      </Answer>
    </div>
  );
}

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

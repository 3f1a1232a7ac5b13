// One checkpoint: its messages, state and files, and a diff with another checkpoint.
import { useState } from "preact/hooks";

import { at, send } from "../../base/api";
import { count, plural, stamp } from "../../base/format";
import { useGet } from "../../base/query";
import { go, href, route } from "../../base/route";
import { snapshotId, type CheckpointContent, type CheckpointSummary, type Difference, type EffectPage } from "../../base/shapes";
import { Copy, Id, SecretsTag, Tabs, Tags, Time } from "../../ui/bits";
import { Confirm } from "../../ui/dialog";
import { Patch } from "../../ui/diff";
import { ThreadRuns } from "./runs";
import { EditMessage, EditState } from "./edit";
import { Value } from "../../ui/json";
import { Message } from "../../ui/message";
import { Rows } from "../../ui/rows";
import { Answer, Empty } from "../../ui/states";
import { Browser } from "../workspace/browser";
import { FileChanges } from "../workspace/changes";
import type { Grown, Node } from "./growth";
import { Pending } from "./pending";

type Tab = "messages" | "state" | "files" | "diff" | "runs";
type Asking = "fork" | "rewind" | null;

/** How many secrets the files of a checkpoint seem to hold. */
function secretsOf(checkpoint: CheckpointSummary) {
  const files = checkpoint.metadata["workspace"] as { secrets_count?: number } | undefined;
  return { length: files?.secrets_count ?? 0 };
}

export function Inspector({ grown, node, onChange }: { grown: Grown; node: Node; onChange: () => void }) {
  const { query } = route.value;
  const { checkpoint } = node;
  const tab = (["state", "files", "diff", "runs"].find((each) => each === query["tab"]) ?? "messages") as Tab;
  const [asking, ask] = useState<Asking>(null);
  // Names that begin with _ are a framework's own bookkeeping.
  const metadata = Object.fromEntries(Object.entries(checkpoint.metadata).filter(([name]) => !name.startsWith("_")));
  const content = useGet<CheckpointContent>(
    at(["threads", checkpoint.thread, "checkpoints", checkpoint.id], { namespace: checkpoint.namespace, readable: true }),
  );
  const to = (name: Tab) => href(route.value.path, { ...query, tab: name === "messages" ? null : name });
  return (
    <section class="inspector" aria-label="Checkpoint">
      <header class="checkpoint-head">
        <h2>
          <span class="step">{checkpoint.step}</span>
          {checkpoint.note ?? "Checkpoint"}
        </h2>
        <p class="muted">
          {checkpoint.thread !== grown.lineages[0]!.thread.id && `${checkpoint.thread} · `}
          <Time at={checkpoint.created_at} /> <span class="small">({stamp(checkpoint.created_at)})</span> ·{" "}
          <Id id={checkpoint.id} /> <Copy text={checkpoint.id} label="Copy id" />
        </p>
        <p>
          <Tags tags={checkpoint.tags} />
          {!node.isOnLine && <span class="tag warn">abandoned by a rewind</span>}
          <SecretsTag secrets={secretsOf(checkpoint)} />
          {node.isHead && <span class="tag good">{checkpoint.thread === grown.lineages[0]!.thread.id ? "head" : `head of ${checkpoint.thread}`}</span>}
        </p>
        <p class="buttons tight">
          <button type="button" onClick={() => ask("fork")}>
            Fork here
          </button>
          <button type="button" onClick={() => ask("rewind")} disabled={node.isHead}>
            Rewind here
          </button>
        </p>
      </header>
      {checkpoint.pending_interrupt && node.isHead && <Pending checkpoint={checkpoint} onDone={onChange} />}
      {Object.keys(metadata).length > 0 && (
        <div class="box metadata">
          <Value name="metadata" value={metadata} open={false} />
        </div>
      )}
      <Tabs
        label="Checkpoint"
        now={tab}
        to={to}
        tabs={[
          ["messages", <>Messages <small>{checkpoint.message_count}</small></>],
          ["state", "State"],
          ["files", "Files"],
          ["diff", "Diff"],
          ["runs", "Runs"],
        ]}
      />
      <div class="inspector-body">
        {tab === "diff" ? (
          <Compare grown={grown} node={node} />
        ) : tab === "runs" ? (
          <ThreadRuns thread={checkpoint.thread} namespace={checkpoint.namespace} />
        ) : (
          <Answer asked={content} what="Loading checkpoint">
            {(whole) => (
              <>
                {tab === "messages" && <Messages content={whole} />}
                {tab === "state" && <State content={whole} />}
                {tab === "files" &&
                  (checkpoint.snapshot ? (
                    <Browser snapshot={snapshotId(checkpoint.snapshot)} />
                  ) : (
                    <Empty title="No files">
                      This checkpoint has no files. Pass <code>workspace=</code> when you save it to include them.
                    </Empty>
                  ))}
              </>
            )}
          </Answer>
        )}
      </div>
      {asking === "fork" && <ForkDialog node={node} onClose={() => ask(null)} />}
      {asking === "rewind" && <RewindDialog grown={grown} node={node} onClose={() => ask(null)} onDone={onChange} />}
    </section>
  );
}

function Messages({ content }: { content: CheckpointContent }) {
  const [edited, edit] = useState<number | null>(null);
  if (content.messages.length === 0) return <Empty title="No messages">This checkpoint has no messages.</Empty>;
  return (
    <>
      <Rows
        class="conversation"
        label="Messages"
        items={content.readable}
        height={84}
        measured
        tail
        keys={false}
        idOf={(_, index) => String(index)}
        row={(message, index) => (
          <>
            <Boundaries content={content} at={index} />
            <Message message={message} source={content.messages[index]} onEdit={() => edit(index)} />
            {index === content.messages.length - 1 && <Boundaries content={content} at={index + 1} />}
          </>
        )}
      />
      {edited !== null && <EditMessage content={content} index={edited} onClose={() => edit(null)} />}
    </>
  );
}

/** Where a model stops reading: a summary stands for what is above. */
function Boundaries({ content, at }: { content: CheckpointContent; at: number }) {
  return (
    <>
      {content.compactions
        .filter((each) => each.upto === at)
        .map((each) => (
          <details class="box boundary" key={each.id}>
            <summary>
              Compacted: a model reads a summary of {plural(each.upto, "message")}{" "}
              <span class="muted small">
                {each.tokens_before !== null && each.tokens_after !== null && `${count(each.tokens_before)} → ${count(each.tokens_after)} tokens · `}
                {each.cost !== null && `${Number(each.cost).toFixed(4)} ${each.currency} · `}
                {each.source}
              </span>
            </summary>
            <p class="summary-text">{each.text}</p>
          </details>
        ))}
    </>
  );
}

function State({ content }: { content: CheckpointContent }) {
  const lists = Object.entries(content.lists);
  const [isEdited, edit] = useState(false);
  if (Object.keys(content.state).length === 0 && lists.length === 0) {
    return <Empty title="No state">Pass state= when you save a checkpoint to store values with the messages.</Empty>;
  }
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="State">
      <p class="buttons tight">
        <Copy text={JSON.stringify(content.state, null, 2)} />
        <button type="button" class="quiet" onClick={() => edit(true)}>
          Edit and fork
        </button>
      </p>
      {isEdited && <EditState content={content} onClose={() => edit(false)} />}
      <div class="box">
        <Value value={content.state} open search />
      </div>
      {lists.map(([name, items]) => (
        <div class="box" key={name}>
          <Value name={name} value={items} />
        </div>
      ))}
    </div>
  );
}

function Compare({ grown, node }: { grown: Grown; node: Node }) {
  const { checkpoint } = node;
  const other = route.value.query["with"] ?? checkpoint.parent;
  const base = other ? grown.nodes.get(other) : undefined;
  const url =
    base && base.checkpoint.id !== checkpoint.id
      ? at(["threads", base.checkpoint.thread, "diff"], {
          a: base.checkpoint.id,
          b: checkpoint.id,
          namespace: checkpoint.namespace,
          readable: true,
          other: checkpoint.thread === base.checkpoint.thread ? null : checkpoint.thread,
        })
      : null;
  const asked = useGet<Difference>(url);
  const choices = [...grown.nodes.values()].toSorted((one, two) => (one.checkpoint.id < two.checkpoint.id ? 1 : -1));
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Diff">
      <p>
        <label>
          From{" "}
          <select
            value={other ?? ""}
            onChange={(event) =>
              go(route.value.path, { ...route.value.query, with: event.currentTarget.value, tab: "diff" })
            }
          >
            {!base && <option value="">choose a checkpoint</option>}
            {choices.slice(0, 500).map((each) => (
              <option key={each.checkpoint.id} value={each.checkpoint.id}>
                {each.checkpoint.thread} · {each.checkpoint.step} {each.checkpoint.note ?? ""}
              </option>
            ))}
          </select>
        </label>{" "}
        to step {checkpoint.step} of {checkpoint.thread}
      </p>
      {url === null ? (
        <Empty title="Nothing to compare with">
          {base ? "This is the same checkpoint. Choose another one." : "This is the first checkpoint. Choose another one."}
        </Empty>
      ) : (
        <Answer asked={asked} what="Comparing">
          {(found) => <Differences found={found} />}
        </Answer>
      )}
    </div>
  );
}

function Differences({ found }: { found: Difference }) {
  const said = found.added.length + found.removed.length + found.changed.length;
  const lists = Object.entries(found.lists);
  if (said + found.state.length + lists.length + found.files.length === 0) {
    return <Empty title="No differences">Messages, state, lists and files are identical.</Empty>;
  }
  return (
    <div class="differences">
      <h3>
        Messages <small class="muted">{said ? `${plural(found.common, "message")} in common` : "unchanged"}</small>
      </h3>
      {found.removed.map(([index, message]) => (
        <div class="change removed" key={`r${index}`}>
          <Message message={message} />
        </div>
      ))}
      {found.changed.map((each) => (
        <div class="change changed" key={`c${each.index}`}>
          <div class="change removed">
            <Message message={each.before} />
          </div>
          <div class="change added">
            <Message message={each.after} />
          </div>
        </div>
      ))}
      {found.added.map(([index, message]) => (
        <div class="change added" key={`a${index}`}>
          <Message message={message} />
        </div>
      ))}
      <h3>
        State {found.state.length === 0 && <small class="muted">unchanged</small>}
      </h3>
      {found.state.length > 0 && <Patch operations={found.state} />}
      {lists.map(([name, operations]) => (
        <div key={name}>
          <h3>{name}</h3>
          <Patch operations={operations} />
        </div>
      ))}
      <h3>
        Files {found.files.length === 0 && <small class="muted">unchanged</small>}
      </h3>
      {found.files.length > 0 && <FileChanges changes={found.files} />}
    </div>
  );
}

function ForkDialog({ node, onClose }: { node: Node; onClose: () => void }) {
  const { checkpoint } = node;
  const [name, setName] = useState(`${checkpoint.thread}-fork`);
  return (
    <Confirm
      title={`Fork ${checkpoint.thread} at step ${checkpoint.step}`}
      verb="Fork"
      onClose={onClose}
      action={async () => {
        await send("POST", at(["threads", checkpoint.thread, "fork"], { namespace: checkpoint.namespace }), {
          new_id: name,
          at: checkpoint.id,
        });
        go(["threads", name], { namespace: checkpoint.namespace });
      }}
    >
      <p>Creates a thread that starts here and shares the history. Nothing is copied.</p>
      <label class="field">
        Thread id
        <input type="text" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
    </Confirm>
  );
}

function RewindDialog({ grown, node, onClose, onDone }: { grown: Grown; node: Node; onClose: () => void; onDone: () => void }) {
  // A checkpoint of the shared history is rewound to through the current thread.
  const thread = grown.lineages[0]!.thread;
  const since = { thread: thread.id, namespace: thread.namespace, checkpoint: node.checkpoint.id };
  const passed = useGet<EffectPage>(at(["effects"], since)).data?.effects ?? [];
  return (
    <Confirm
      title={`Rewind ${thread.id} to step ${node.checkpoint.step}`}
      verb="Rewind"
      danger
      onClose={onClose}
      action={async () => {
        await send("POST", at(["threads", thread.id, "rewind"], { namespace: thread.namespace }), { to: node.checkpoint.id });
        onDone();
      }}
    >
      <p>
        Moves the head of the thread from step {thread.step} back to step {node.checkpoint.step}. Later checkpoints stay in
        the history and can be restored.
      </p>
      {passed.length > 0 && (
        <div class="warning" role="alert">
          <p>{plural(passed.length, "tool call")} since then may have happened. Rewinding does not undo what they did:</p>
          <ul>
            {passed.map(({ effect }) => (
              <li key={effect.id}>
                <code>{effect.tool}</code> {effect.status}, <Time at={effect.started_at_us} />
              </li>
            ))}
          </ul>
        </div>
      )}
    </Confirm>
  );
}

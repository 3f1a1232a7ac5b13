// Change a message or the state of a checkpoint, and go on from there in a fork. The checkpoint itself never changes.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { at, Problem, send } from "../../base/api";
import { plural } from "../../base/format";
import { go } from "../../base/route";
import type { CheckpointContent } from "../../base/shapes";
import { Confirm } from "../../ui/dialog";

export function EditMessage({ content, index, onClose }: { content: CheckpointContent; index: number; onClose: () => void }) {
  const message = content.messages[index];
  const words = textOf(message);
  const [text, setText] = useState(words ?? JSON.stringify(message, null, 2));
  const [isKept, keep] = useState(false);
  const after = content.messages.length - index - 1;
  const change = () => {
    const edited = words === null ? parsed(text) : { ...(message as object), content: text };
    return { messages: [...content.messages.slice(0, index), edited, ...(isKept ? content.messages.slice(index + 1) : [])] };
  };
  return (
    <EditedFork content={content} title={`Edit message ${index + 1}`} change={change} onClose={onClose}>
      <label class="field">
        {words === null ? "Message (JSON)" : "Message"}
        <textarea rows={10} spellcheck={words !== null} dir="auto" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {after > 0 && (
        <label class="check">
          <input type="checkbox" checked={isKept} onChange={(event) => keep(event.currentTarget.checked)} /> Keep the{" "}
          {plural(after, "message")} after it
        </label>
      )}
    </EditedFork>
  );
}

export function EditState({ content, onClose }: { content: CheckpointContent; onClose: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(content.state, null, 2));
  return (
    <EditedFork content={content} title="Edit the state" change={() => ({ state: parsed(text) })} onClose={onClose}>
      <label class="field">
        State (JSON)
        <textarea rows={14} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </EditedFork>
  );
}

interface Props {
  content: CheckpointContent;
  title: string;
  change: () => Record<string, unknown>;
  onClose: () => void;
  children: ComponentChildren;
}

function EditedFork({ content, title, change, onClose, children }: Props) {
  const { checkpoint } = content;
  const [name, setName] = useState(`${checkpoint.thread}-edited`);
  return (
    <Confirm
      title={title}
      verb="Fork with this change"
      onClose={onClose}
      action={async () => {
        await send("POST", at(["threads", checkpoint.thread, "fork"], { namespace: checkpoint.namespace }), {
          new_id: name,
          at: checkpoint.id,
          ...change(),
        });
        go(["threads", name], { namespace: checkpoint.namespace });
      }}
    >
      <p>
        Step {checkpoint.step} of {checkpoint.thread} stays as it is. A new thread begins there with the change, and its agent goes on
        from it.
      </p>
      {children}
      <label class="field">
        Id of the new thread
        <input type="text" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
    </Confirm>
  );
}

/** The text of a message that is nothing but text. */
function textOf(message: unknown): string | null {
  const content = message !== null && typeof message === "object" ? (message as { content?: unknown }).content : null;
  return typeof content === "string" && content !== "" ? content : null;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new Problem(0, "Invalid JSON", `This is not JSON: ${String(error)}`);
  }
}

// The content of a message: text, content blocks, or any value.
import { Text, Value } from "./json";

export function Content({ content }: { content: unknown }) {
  if (content === null || content === undefined) return <span class="muted">empty</span>;
  if (typeof content === "string") return <Text text={content} />;
  if (Array.isArray(content)) {
    if (content.every((each) => isBlock(each))) {
      return (
        <>
          {content.map((each, index) => (
            <Block key={index} block={each as Record<string, unknown>} />
          ))}
        </>
      );
    }
    return <Value value={content} />;
  }
  return <Value value={content} />;
}

function Block({ block }: { block: Record<string, unknown> }) {
  const text = block["text"] ?? block["thinking"];
  if (typeof text === "string") {
    return (
      <p class={`block ${block["type"] === "thinking" ? "thinking" : ""}`}>
        <Text text={text} />
      </p>
    );
  }
  return <Value value={block} />;
}

function isBlock(each: unknown): boolean {
  return each !== null && typeof each === "object" && typeof (each as Record<string, unknown>)["type"] === "string";
}

/** A message of a conversation, in any framework's format. */
export interface Said {
  role: string;
  content: unknown;
  rest: Record<string, unknown>;
}

const ROLES: Record<string, string> = { human: "user", ai: "assistant" };

export function said(message: unknown): Said {
  if (message === null || typeof message !== "object" || Array.isArray(message)) {
    return { role: "message", content: message, rest: {} };
  }
  const { role, type, agent_id, content, ...rest } = message as Record<string, unknown>;
  const who = [role, type, agent_id].find((each) => typeof each === "string") as string | undefined;
  if (content === undefined) return { role: who ?? "message", content: message, rest: {} };
  const told = Object.fromEntries(
    Object.entries(rest).filter(([, value]) => value !== null && value !== "" && !isHollow(value)),
  );
  return { role: ROLES[who ?? ""] ?? who ?? "message", content, rest: told };
}

function isHollow(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

export function Message({ message }: { message: unknown }) {
  const { role, content, rest } = said(message);
  return (
    <article class={`said ${role}`}>
      <h3>{role}</h3>
      <div class="said-content">
        <Content content={content} />
        {Object.keys(rest).length > 0 && <Value value={rest} open={false} />}
      </div>
    </article>
  );
}

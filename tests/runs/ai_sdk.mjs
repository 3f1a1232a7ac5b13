// One conversation with a scripted model, as the AI SDK gives it to an application: its model messages and its interface messages.
import { generateText, isStepCount, jsonSchema, readUIMessageStream, streamText, tool, toUIMessageStream } from "ai";
import { MockLanguageModelV4, simulateReadableStream } from "ai/test";

globalThis.AI_SDK_LOG_WARNINGS = false;
const PIXEL = "iVBORw0KGgoAAAAA";
const usage = { inputTokens: { total: 1, noCache: 1 }, outputTokens: { total: 1, text: 1 } };
const both = { usage, warnings: [] };
const answers = [
  [
    { type: "reasoning", text: "hm" },
    { type: "text", text: "Looking." },
    { type: "source", sourceType: "url", id: "s", url: "https://example.com", title: "Terms" },
    { type: "file", mediaType: "image/png", data: { type: "data", data: PIXEL } },
    { type: "tool-call", toolCallId: "c1", toolName: "search", input: '{"q":"x"}' },
    { type: "tool-call", toolCallId: "c2", toolName: "broken", input: "{}" },
  ],
  [{ type: "text", text: "Done." }],
];
const reason = (turn) => ({ unified: turn === 0 ? "tool-calls" : "stop" });
const inputSchema = jsonSchema({ type: "object" });
const tools = {
  search: tool({ inputSchema, execute: async () => "found" }),
  broken: tool({
    inputSchema,
    execute: async () => {
      throw new Error("down");
    },
  }),
};
const asked = [
  {
    role: "user",
    content: [
      { type: "text", text: "hi" },
      { type: "image", image: PIXEL, mediaType: "image/png" },
      { type: "file", data: "AAAA", filename: "a.pdf", mediaType: "application/pdf" },
    ],
  },
];

let turn = 0;
const model = new MockLanguageModelV4({
  doGenerate: async () => ({ content: answers[turn], finishReason: reason(turn++), ...both }),
});
const said = await generateText({ model, tools, messages: asked, stopWhen: isStepCount(3) });

function chunksOf(part, index) {
  if (part.type !== "text" && part.type !== "reasoning") return [part];
  const id = String(index);
  return [
    { type: `${part.type}-start`, id },
    { type: `${part.type}-delta`, id, delta: part.text },
    { type: `${part.type}-end`, id },
  ];
}

let next = 0;
const streaming = new MockLanguageModelV4({
  doStream: async () => {
    const parts = answers[next].flatMap(chunksOf);
    const chunks = [{ type: "stream-start", warnings: [] }, ...parts, { type: "finish", finishReason: reason(next++), usage }];
    return { stream: simulateReadableStream({ chunks }) };
  },
});
const streamed = streamText({ model: streaming, tools, prompt: "hi", stopWhen: isStepCount(3), onError: () => {} });
let shown;
for await (const each of readUIMessageStream({ stream: toUIMessageStream({ stream: streamed.stream, sendSources: true }) })) {
  shown = each;
}
console.log(JSON.stringify({ model: [...asked, ...said.responseMessages], ui: [shown] }));

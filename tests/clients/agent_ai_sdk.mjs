// @ai-sdk/openai-compatible under the AI SDK: a loop of steps with tools, whole and streamed.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [url, key] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "octavo", baseURL: `${url}/v1`, apiKey: key, includeUsage: true,
});
const answer = "It is 3 degrees in Oslo.";

function asked(called) {
  const noArguments = { type: "object", properties: {}, additionalProperties: false };
  return {
    model: provider("tiny"),
    prompt: "How warm is it in Oslo?",
    maxRetries: 0,
    stopWhen: stepCountIs(4),
    tools: {
      weather: tool({
        description: "The weather of a city.",
        inputSchema: jsonSchema({
          type: "object", properties: { city: { type: "string" } }, required: ["city"],
        }),
        execute: async ({ city }) => (called.push(city), `3 degrees in ${city}`),
      }),
      clock: tool({
        description: "The time.",
        inputSchema: jsonSchema(noArguments),
        execute: async () => (called.push("clock"), "noon"),
      }),
    },
  };
}

let called = [];
const whole = await generateText(asked(called));
assert.equal(whole.text, answer);
assert.deepEqual(called.sort(), ["Oslo", "clock"]);
assert.equal(whole.steps.length, 2);
assert.equal(whole.steps[0].finishReason, "tool-calls");
assert.equal(whole.steps[0].reasoningText.trim(), "I need the weather.");
assert.equal(whole.steps[0].text, "I look.");
assert.ok(whole.steps[0].usage.reasoningTokens > 0);

called = [];
const kinds = new Set();
const stream = streamText({
  ...asked(called), onError: ({ error }) => assert.fail(`${error}`),
});
for await (const part of stream.fullStream) kinds.add(part.type);
assert.equal(await stream.text, answer);
assert.deepEqual(called.sort(), ["Oslo", "clock"]);
assert.equal((await stream.steps).length, 2);
for (const kind of ["reasoning-delta", "text-delta", "tool-input-delta", "tool-call", "tool-result"])
  assert.ok(kinds.has(kind), kind);
console.log("all is well");

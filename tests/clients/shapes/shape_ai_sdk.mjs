// The AI SDK over an OpenAI-compatible server: objects, whole and streamed, and required calls.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, streamObject, tool } from "ai";
import { z } from "zod";

const [url, key] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "octavo", baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true,
});
const schema = z.object({
  city: z.enum(["Oslo", "Rome"]), degrees: z.int().min(-9).max(9), sunny: z.boolean(),
}).strict();
const asked = {
  model: provider("tiny"), prompt: "How warm is it?", maxRetries: 0, maxOutputTokens: 2000, seed: 5,
};

const whole = await generateObject({ ...asked, schema });
schema.parse(whole.object);
assert.equal(whole.finishReason, "stop");
const stream = streamObject({ ...asked, schema, onError: ({ error }) => assert.fail(`${error}`) });
let parts = 0;
for await (const part of stream.partialObjectStream) parts += typeof part === "object" ? 1 : 0;
assert.ok(parts > 1);
assert.deepEqual(await stream.object, whole.object);
const output = await generateText({ ...asked, output: Output.object({ schema }) });
schema.parse(output.output);

const tools = { weather: tool({ description: "The weather.", inputSchema: schema }) };
const called = await generateText({ ...asked, tools, toolChoice: "required" });
assert.ok(called.toolCalls.length > 0);
for (const call of called.toolCalls) schema.parse(call.input);
console.log("all is well");

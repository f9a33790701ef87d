// openai for node: answers and arguments that its helpers parse, whole and streamed.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 120_000 });
const Weather = z.object({
  city: z.enum(["Oslo", "Rome"]), degrees: z.int().min(-9).max(9), sunny: z.boolean(),
});
const asked = {
  model: "tiny", max_tokens: 2000, seed: 4, messages: [{ role: "user", content: "How warm is it?" }],
};
const shaped = { ...asked, response_format: zodResponseFormat(Weather, "weather") };

const whole = await client.chat.completions.parse(shaped);
const found = whole.choices[0].message.parsed;
Weather.parse(found);
const stream = client.chat.completions.stream(shaped);
let deltas = 0;
stream.on("content.delta", ({ snapshot }) => (deltas++, assert.equal(typeof snapshot, "string")));
assert.deepEqual((await stream.finalChatCompletion()).choices[0].message.parsed, found);
assert.ok(deltas > 1);

const tools = [zodFunction({ name: "weather", parameters: Weather })];
const called = await client.chat.completions.parse({ ...asked, tools, tool_choice: "required" });
const calls = called.choices[0].message.tool_calls;
assert.ok(calls.length > 0);
for (const call of calls) Weather.parse(call.function.parsed_arguments);
console.log("all is well");

// openai for node: its own loop over tools, whole and streamed.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 60_000 });
const called = [];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "The weather of a city.",
      parameters: {
        type: "object", properties: { city: { type: "string" } }, required: ["city"],
      },
      parse: JSON.parse,
      function: ({ city }) => (called.push(city), `3 degrees in ${city}`),
    },
  },
  {
    type: "function",
    function: {
      name: "clock",
      description: "The time.",
      parameters: { type: "object", properties: {} },
      parse: JSON.parse,
      function: () => (called.push("clock"), "noon"),
    },
  },
];
const messages = [{ role: "user", content: "How warm is it in Oslo?" }];

for (const stream of [false, true]) {
  called.length = 0;
  const runner = client.chat.completions.runTools({ model: "tiny", messages, tools, stream });
  assert.equal(await runner.finalContent(), "It is 3 degrees in Oslo.");
  assert.deepEqual(called.sort(), ["Oslo", "clock"]);
  const calls = runner.messages.flatMap((each) => each.tool_calls ?? []);
  assert.deepEqual(calls.map((call) => call.function.name), ["weather", "clock"]);
}
console.log("all is well");

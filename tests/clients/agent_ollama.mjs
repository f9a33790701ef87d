// ollama for node with tools: the calls of an answer are sent back with their results.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const [url, key] = process.argv.slice(2);
const client = new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } });
const results = { weather: "3 degrees", clock: "noon" };
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "weather", description: "The weather.", parameters } },
  { type: "function", function: { name: "clock", description: "The time." } },
];
for (const stream of [false, true]) {
  const messages = [{ role: "user", content: "How warm is it in Oslo?" }];
  const answer = await client.chat({ model: "tiny", messages, tools, think: true, stream });
  const parts = [];
  if (stream) for await (const part of answer) parts.push(part.message);
  else parts.push(answer.message);
  const thinking = parts.map((part) => part.thinking ?? "").join("");
  assert.equal(thinking.trim(), "I need the weather.");
  const tool_calls = parts.flatMap((part) => part.tool_calls ?? []);
  assert.deepEqual(tool_calls.map((call) => call.function.arguments), [{ city: "Oslo" }, {}]);
  messages.push({ role: "assistant", content: "I look.", tool_calls });
  for (const { function: called } of tool_calls)
    messages.push({ role: "tool", tool_name: called.name, content: results[called.name] });
  const last = await client.chat({ model: "tiny", messages, tools });
  assert.equal(last.message.content.trim(), "It is 3 degrees in Oslo.");
}
console.log("all is well");

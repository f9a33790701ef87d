// @ai-sdk/openai-compatible under the AI SDK: texts, streams, completions, and its errors.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";

const [url, full, key] = process.argv.slice(2);
const provider = (to, apiKey = key) =>
  createOpenAICompatible({ name: "octavo", baseURL: `${to}/v1`, apiKey, includeUsage: true });
const ours = provider(url);
const common = { maxRetries: 0, maxOutputTokens: 8, temperature: 0 };
const messages = [{ role: "user", content: "Hello" }];

for (const model of [ours("tiny"), ours.completionModel("tiny")]) {
  const given = { ...common, model, messages };
  const answer = await generateText(given);
  assert.ok(answer.text);
  assert.ok(["length", "stop"].includes(answer.finishReason));
  assert.equal(
    answer.usage.totalTokens, answer.usage.inputTokens + answer.usage.outputTokens);

  const stream = streamText(given);
  let text = "";
  for await (const delta of stream.textStream) text += delta;
  assert.equal(text, answer.text);
  assert.equal((await stream.usage).outputTokens, answer.usage.outputTokens);
  assert.equal(await stream.finishReason, answer.finishReason);
}

// Content as parts, a system message, and a field that only this kind of server knows.
const rich = await generateText({
  ...common,
  model: ours("tiny"),
  system: "Be brief.",
  messages: [{ role: "user", content: [{ type: "text", text: "Hel" }, { type: "text", text: "lo" }] }],
  stopSequences: ["\u2603"],
  seed: 3,
  providerOptions: { octavo: { min_tokens: 2 } },
});
assert.ok(rich.text);

// A stream that is given up.
const abort = new AbortController();
const left = streamText({ ...common, model: ours("tiny"), messages, abortSignal: abort.signal });
for await (const _ of left.textStream) abort.abort();

async function refused(status, model, fields = {}) {
  const error = await generateText({ ...common, model, messages, ...fields }).then(
    () => assert.fail(`${status} was expected`),
    (error) => error,
  );
  assert.ok(APICallError.isInstance(error), `${error}`);
  assert.equal(error.statusCode, status);
  let streamed = null;
  const stream = streamText({
    ...common, model, messages, ...fields, onError: (event) => (streamed = event.error),
  });
  await stream.consumeStream();
  assert.equal(streamed?.statusCode, status);
  return error;
}
assert.match((await refused(404, ours("gpt-9"))).message, /gpt-9/);
assert.match((await refused(401, provider(url, "wrong-key")("tiny"))).message, /API key/);
const wrong = await refused(400, ours("tiny"), { temperature: 9 });
assert.equal(wrong.data.error.param, "temperature");
assert.equal(wrong.isRetryable, false);
const busy = await refused(429, provider(full)("tiny"));
assert.ok(Number(busy.responseHeaders["retry-after"]) >= 1);
assert.equal(busy.isRetryable, true);
console.log("all is well");

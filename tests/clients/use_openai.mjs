// openai for node: chat, completions, responses, streams, embeddings, models, and errors as its own classes.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, full, key] = process.argv.slice(2);
const client = (baseURL, apiKey = key) =>
  new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
const ours = client(url);
const messages = [{ role: "user", content: "Hello" }];
const common = { model: "tiny", messages, max_completion_tokens: 8, temperature: 0 };

const models = [];
for await (const model of ours.models.list()) models.push(model.id);
assert.deepEqual(models, ["tiny"]);
assert.equal((await ours.models.retrieve("tiny")).owned_by, "octavo");

const answer = await ours.chat.completions.create({ ...common, logprobs: true, top_logprobs: 2 });
const [choice] = answer.choices;
assert.equal(choice.logprobs.content.length, answer.usage.completion_tokens);
assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
assert.equal(typeof answer.usage.prompt_tokens_details.cached_tokens, "number");
assert.equal(answer.usage.completion_tokens_details.reasoning_tokens, 0);

let text = "";
let usage = null;
const wanted = { ...common, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await ours.chat.completions.create(wanted)) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, choice.message.content);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);

const helper = ours.chat.completions.stream(common);
let put = "";
helper.on("content", (delta) => (put += delta));
assert.equal((await helper.finalChatCompletion()).choices[0].message.content, text);
assert.equal(put, text);

const several = await ours.chat.completions.create({ ...common, temperature: 1, n: 2, seed: 5 });
assert.deepEqual(several.choices.map((each) => each.index), [0, 1]);

const body = { model: "tiny", prompt: "The quick", max_tokens: 6, temperature: 0 };
const whole = await ours.completions.create({ ...body, logprobs: 1 });
assert.equal(whole.choices[0].logprobs.tokens.length, 6);
let parts = "";
for await (const chunk of await ours.completions.create({ ...body, stream: true }))
  parts += chunk.choices[0]?.text ?? "";
assert.equal(parts, whole.choices[0].text);

const asked = { model: "tiny", input: "Hello", max_output_tokens: 8, temperature: 0 };
const response = await ours.responses.create(asked);
assert.equal(response.status, "incomplete");
assert.deepEqual((await ours.responses.retrieve(response.id)).output, response.output);
const numbers = [];
let said = "";
for await (const event of await ours.responses.create({ ...asked, stream: true })) {
  numbers.push(event.sequence_number);
  if (event.type === "response.output_text.delta") said += event.delta;
}
assert.equal(said, response.output_text);
assert.deepEqual(numbers, [...numbers.keys()]);

// It asks for base64 unless it is given a format, and decodes it.
const embed = (fields) => ours.embeddings.create({ model: "tiny", ...fields });
const coded = await embed({ input: ["The quick", "fox"], dimensions: 8 });
assert.deepEqual(coded.data.map((each) => each.embedding.length), [8, 8]);
const listed = await embed({ input: "The quick", dimensions: 8, encoding_format: "float" });
listed.data[0].embedding.forEach((value, index) =>
  assert.ok(Math.abs(value - coded.data[0].embedding[index]) < 1e-6),
);

// A stream that is given up, and the connection after it.
const left = await ours.chat.completions.create({ ...common, stream: true });
for await (const _ of left) break;
assert.ok((await ours.chat.completions.create(common)).id.startsWith("chatcmpl-"));

async function refused(kind, to, fields) {
  for (const stream of [false, true]) {
    const error = await to.chat.completions.create({ ...common, ...fields, stream }).then(
      () => assert.fail(`${kind.name} was expected`),
      (error) => error,
    );
    assert.ok(error instanceof kind, `${error}`);
    if (stream) return error;
  }
}
const missing = await refused(OpenAI.NotFoundError, ours, { model: "gpt-9" });
assert.equal(missing.code, "model_not_found");
assert.equal(missing.param, "model");
const stranger = client(url, "wrong-key");
assert.equal((await refused(OpenAI.AuthenticationError, stranger, {})).code, "invalid_api_key");
const wrong = await refused(OpenAI.BadRequestError, ours, { temperature: 9 });
assert.equal(wrong.param, "temperature");
assert.equal(wrong.type, "invalid_request_error");
const busy = await refused(OpenAI.RateLimitError, client(full), {});
assert.ok(Number(busy.headers.get("retry-after")) >= 1);
assert.ok(busy.requestID);
console.log("all is well");

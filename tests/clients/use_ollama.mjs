// ollama for node: both routes, whole and in lines, shapes, models, refusals.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const [url, full, key] = process.argv.slice(2);
const client = (host, given = key) =>
  new Ollama({ host, headers: { authorization: `Bearer ${given}` } });
const ours = client(url);
const messages = [{ role: "user", content: "Hello" }];
const options = { num_predict: 8, temperature: 0 };

const { models } = await ours.list();
assert.deepEqual(models.map((model) => model.name), ["tiny"]);
assert.equal((await ours.ps()).models[0].digest, models[0].digest);
assert.ok((await ours.show({ model: "tiny" })).capabilities.includes("completion"));
assert.ok((await ours.version()).version);

const whole = await ours.chat({ model: "tiny", messages, options });
assert.equal(whole.done_reason, "length");
assert.equal(whole.eval_count, 8);
let text = "";
let last = null;
for await (const part of await ours.chat({ model: "tiny:latest", messages, options, stream: true })) {
  text += part.message.content;
  last = part;
}
assert.equal(text, whole.message.content);
assert.ok(last.done && last.total_duration > 0);

const prompt = { model: "tiny", prompt: "The quick", raw: true, options };
const generated = await ours.generate(prompt);
let parts = "";
for await (const part of await ours.generate({ ...prompt, stream: true })) parts += part.response;
assert.equal(parts, generated.response);

const format = {
  type: "object",
  properties: { a: { type: "boolean" } },
  required: ["a"],
  additionalProperties: false,
};
const shaped = await ours.chat({ model: "tiny", messages, format, options: { temperature: 0 } });
assert.equal(typeof JSON.parse(shaped.message.content).a, "boolean");

const { embeddings } = await ours.embed({ model: "tiny", input: ["The quick", "fox"], dimensions: 8 });
assert.deepEqual(embeddings.map((vector) => vector.length), [8, 8]);
const older = await ours.embeddings({ model: "tiny", prompt: "The quick" });
assert.equal(older.embedding.length, 32);

// A stream that is given up, and the connection after it.
const left = await ours.generate({ ...prompt, stream: true });
for await (const _ of left) break;
left.abort();
assert.ok((await ours.generate(prompt)).done);

const refused = async (asked) =>
  asked.then(
    () => assert.fail("an error was expected"),
    (error) => error,
  );
assert.match((await refused(ours.chat({ model: "llama3", messages }))).message, /llama3/);
assert.equal((await refused(ours.chat({ model: "llama3", messages }))).status_code, 404);
assert.match((await refused(ours.pull({ model: "llama3" }))).message, /'tiny'.*octavo serve/);
assert.equal((await ours.pull({ model: "tiny" })).status, "success");
assert.equal((await refused(ours.delete({ model: "tiny" }))).status_code, 400);
assert.equal((await refused(client(url, "wrong-key").list())).status_code, 401);
assert.equal((await refused(client(full).generate(prompt))).status_code, 429);
console.log("all is well");

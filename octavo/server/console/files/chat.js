// The conversation: send, stream, stop, edit, retry.

let messages = kept.get("messages", []);
let running = null;  // the AbortController of the answer that is being written

const MOST_KEPT = 2_000_000;  // characters of a conversation that this tab remembers

function keep() {
  const text = JSON.stringify(messages);
  if (text.length <= MOST_KEPT) kept.set("messages", messages);
}

function actsOf(message, index) {
  if (running) return [];
  const acts = [];
  if (message.role === "user") acts.push(button("Edit", () => edit(index)));
  if (message.role === "assistant") {
    if (message.content) acts.push(button("Copy", () => navigator.clipboard?.writeText(message.content).then(() => say("copied"))));
    acts.push(button("Retry", () => retry(index)));
    if (message.id) acts.push(button("Timeline", () => openTimeline(message.id)));
  }
  return acts;
}

function itemOf(message, index) {
  const isOpen = !running && index === messages.length - 1;
  return messageItem(message, actsOf(message, index), isOpen ? giveResult : null);
}

function showAll() {
  hideLikely();
  $("messages").replaceChildren(...messages.map(itemOf));
  $("empty").hidden = messages.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  scroll(true);
}

/** Follow the answer, unless the reader has scrolled up. */
function scroll(always = false) {
  const box = $("messages");
  if (box.scrollHeight > box.clientHeight + 2) {
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
  } else if (always || $("composer").getBoundingClientRect().bottom < innerHeight + 120) {
    $("composer").scrollIntoView({ block: "end" });  // on a phone the page itself scrolls
  }
}

/** Show the newest message again, at most once for each frame of the screen. */
let isDue = false;
function showLast() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (!running) return;
    const list = $("messages");
    const item = itemOf(messages.at(-1), messages.length - 1);
    item.classList.add("waiting");
    list.lastElementChild?.replaceWith(item);
    scroll();
  });
}

function sendable() {
  const system = $("system").value.trim();
  const sent = messages.slice(0, -1).filter((each) => !each.error || each.content).map((each) => {
    const message = { role: each.role, content: each.content };
    if (each.calls?.length) message.tool_calls = each.calls;
    if (each.callId) message.tool_call_id = each.callId;
    return message;
  });
  return system ? [{ role: "system", content: system }, ...sent] : sent;
}

/** Forget tokens behind the text's end: the one that ended the answer has no text in it. */
function dropUnwritten(message) {
  const text = () => message.tokens.map((each) => each.text).join("");
  while (message.tokens?.length && text().length > message.content.length && text().startsWith(message.content)) message.tokens.pop();
}

function take(message, chunk, began) {
  message.id ??= chunk.id;
  if (chunk.error) throw new ApiProblem(500, chunk.error.message ?? "the stream reports an error");
  if (chunk.usage) message.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (delta.content || reasoning || delta.tool_calls) {
    message.firstMs ??= performance.now() - began;
    message.lastMs = performance.now() - began;
  }
  if (delta.content) message.content += delta.content;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  for (const part of delta.tool_calls ?? []) {
    message.calls ??= [];
    const call = message.calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
    call.id ||= part.id ?? "";
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
  for (const each of choice.logprobs?.content ?? []) {
    message.tokens ??= [];
    message.tokens.push({ text: each.token, logprob: each.logprob, top: each.top_logprobs ?? [] });
  }
  if (choice.finish_reason) {
    message.finish = choice.finish_reason;
    dropUnwritten(message);
  }
}

/** Let the model answer what stands in the conversation. */
async function answer() {
  const parts = requestParts();
  if (!parts) return;
  const message = { role: "assistant", content: "", model: parts.model };
  messages.push(message);
  running = new AbortController();
  showAll();
  const { signal } = running;
  const began = performance.now();
  const body = { ...parts, messages: sendable(), stream: true, stream_options: { include_usage: true } };
  let isDone = false;
  try {
    const response = await api("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
    for await (const data of events(response)) {
      if (data === "[DONE]") { isDone = true; break; }
      take(message, JSON.parse(data), began);
      showLast();
    }
    if (!isDone) message.error = "The answer has broken off before its end; Retry asks again.";
  } catch (error) {
    if (signal.aborted) message.finish = "stopped";
    else message.error = error instanceof ApiProblem ? error.message : "The server cannot be reached, or the connection was lost; Retry asks again.";
  }
  running = null;
  keep();
  showAll();
  say(message.error ?? (message.finish === "stopped" ? "stopped" : "the answer is complete"));
  if (document.activeElement === document.body) $("question").focus({ preventScroll: true });
}

function ask(text) {
  if (running || !text.trim()) return;
  messages.push({ role: "user", content: text });
  $("question").value = "";
  answer();
}

function giveResult(call, text) {
  messages.push({ role: "tool", content: text, callId: call.id });
  const calls = messages.findLast((each) => each.calls)?.calls ?? [];
  const given = new Set(messages.map((each) => each.callId));
  const open = calls.filter((each) => !given.has(each.id));
  if (open.length) { showAll(); $("messages").append(...open.map((each) => callOf(each, giveResult))); } else answer();
}

function retry(index) {
  messages = messages.slice(0, index);
  answer();
}

/** Change a message of the user's; what followed it is answered anew. */
function edit(index) {
  const item = $("messages").children[index];
  const field = el("textarea", "");
  field.value = messages[index].content;
  field.rows = Math.min(12, field.value.split("\n").length + 1);
  field.setAttribute("aria-label", "Message to change");
  const done = () => {
    if (!field.value.trim()) return;
    messages = [...messages.slice(0, index), { role: "user", content: field.value }];
    answer();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); showAll(); $("question").focus(); }
  });
  item.querySelector(".body").replaceChildren(field, el("div", "row", button("Send again", done, ""), button("Cancel", showAll)));
  field.focus();
}

function startChat() {
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); ask($("question").value); });
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask($("question").value); }
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    kept.drop("messages");
    showAll();
    $("question").focus();
  });
  showAll();
}

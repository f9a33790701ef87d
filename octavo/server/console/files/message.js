// One message of the conversation, as elements, and the likely tokens at each place of an answer.

let likely = null;

function hideLikely() {
  likely?.remove();
  likely = null;
  document.querySelector(".token.on")?.classList.remove("on");
}

const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return `${share >= 10 ? share.toFixed(0) : share.toPrecision(2)} %`;
};

/** Show what else the model might have written at a token's place. */
function showLikely(span, token) {
  hideLikely();
  span.classList.add("on");
  const rows = token.top.map((each) => el(
    "tr", "", el("td", "", JSON.stringify(each.token).slice(1, -1)), el("td", "", percent(each.logprob)),
  ));
  likely = el("div", "likely", el("p", "", `“${token.text}” had ${percent(token.logprob)}`), el("table", "", ...rows));
  document.body.append(likely);
  const place = span.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - likely.offsetWidth - 8);
  likely.style.left = `${Math.max(8, left)}px`;
  const below = place.bottom + 6;
  const top = below + likely.offsetHeight > innerHeight ? place.top - likely.offsetHeight - 6 : below;
  likely.style.top = `${Math.max(4, top)}px`;
}

/** Tint a token by how unlikely it was: what the model was sure of stays plain. */
function tint(span, logprob) {
  const doubt = Math.min(1, Math.max(0, -logprob / 3));
  if (doubt > 0.03) span.style.background = `color-mix(in srgb, var(--prefill) ${Math.round(45 * doubt)}%, transparent)`;
}

function tokenSpans(tokens) {
  const box = el("div", "tokens");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Tokens of the answer; the arrow keys walk through them");
  tokens.forEach((token, index) => {
    const span = el("span", "token", token.text);
    span.dataset.index = index;
    tint(span, token.logprob);
    box.append(span);
  });
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(tokens.length - 1, index));
    showLikely(box.children[at], tokens[at]);
  };
  box.addEventListener("pointerover", (event) => {
    if (event.target.dataset.index !== undefined) show(Number(event.target.dataset.index));
  });
  box.addEventListener("pointerleave", hideLikely);
  box.addEventListener("blur", hideLikely);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at + step);
    say(likely.textContent);
  });
  return box;
}

function bodyOf(message) {
  if (message.tokens?.length) return [tokenSpans(message.tokens)];
  if (message.role === "user" || message.role === "tool") return [message.content];
  return markdown(message.content ?? "");
}

/** Return the block of a tool call, with a field for its result while it has none. */
function callOf(call, answer) {
  let shown = call.function.arguments;
  try { shown = JSON.stringify(JSON.parse(shown), null, 1); } catch { /* it is not whole */ }
  const box = el("div", "call", el("b", "", `calls ${call.function.name}`), el("pre", "", shown));
  if (answer) {
    const field = el("textarea", "code");
    field.rows = 2;
    field.setAttribute("aria-label", `Result of ${call.function.name}`);
    field.placeholder = "its result";
    box.append(field, button("Send the result", () => answer(call, field.value), ""));
  }
  return box;
}

function figuresOf(message) {
  const parts = [];
  if (message.usage) {
    const cached = message.usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${count(message.usage.prompt_tokens)} prompt tokens${cached ? ` (${count(cached)} cached)` : ""}`);
    parts.push(`${count(message.usage.completion_tokens)} generated`);
  }
  if (message.firstMs !== undefined) parts.push(`first token ${time(message.firstMs)}`);
  if (message.usage && message.lastMs > message.firstMs && message.usage.completion_tokens > 1) {
    const rate = (1000 * (message.usage.completion_tokens - 1)) / (message.lastMs - message.firstMs);
    parts.push(`${rate.toFixed(1)} tok/s`);
  }
  if (message.finish && message.finish !== "stop") parts.push(`ended: ${message.finish}`);
  return parts.join(" · ");
}

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

/** Return a message's element; `acts` are its buttons, `answer` takes the results of its calls. */
function messageItem(message, acts, answer) {
  const body = el("div", "body");
  for (const each of bodyOf(message)) body.append(each);
  const item = el(
    "li", `message ${message.role}`,
    el("header", "", el("b", "", message.model || NAMES[message.role] || message.role), el("span", "acts", ...acts)),
  );
  if (message.reasoning) {
    const details = el("details", "reasoning", el("summary", "", "Reasoning"), el("div", "", message.reasoning));
    details.open = !message.content;
    item.append(details);
  }
  item.append(body, ...(message.calls ?? []).map((call) => callOf(call, answer)));
  if (message.error) item.append(el("p", "error", message.error));
  const figures = figuresOf(message);
  if (figures) item.append(el("p", "figures", figures));
  return item;
}

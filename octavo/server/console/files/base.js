// Small helpers: elements, numbers, requests with the key, and the events of a stream.

const $ = (id) => document.getElementById(id);

/** Make an element with a class, texts and children; texts are never read as HTML. */
function el(name, kind, ...children) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

function button(text, onclick, kind = "quiet") {
  const made = el("button", kind, text);
  made.type = "button";
  made.addEventListener("click", onclick);
  return made;
}

/** Set a text only where it changes, so that nothing is announced or laid out twice. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (value) => whole.format(Math.round(value));

/** Write a time of milliseconds with three digits or so. */
function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 60000) return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s`;
  return `${ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** Say something to a screen reader, and show nothing. */
function say(text) { put($("said"), text); }

// What this tab remembers: the key, the settings, the conversation.
const kept = {
  get(name, otherwise) {
    try {
      const found = sessionStorage.getItem(`octavo-${name}`);
      return found === null ? otherwise : JSON.parse(found);
    } catch { return otherwise; }
  },
  set(name, value) {
    try { sessionStorage.setItem(`octavo-${name}`, JSON.stringify(value)); } catch { /* it is full */ }
  },
  drop(name) { sessionStorage.removeItem(`octavo-${name}`); },
};

const base = new URL(location.pathname.endsWith("/") ? "." : `${location.pathname}/`, location.href);

class ApiProblem extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

/** Send a request with the key; raise what the server says about one that is refused. */
async function api(path, options = {}) {
  for (;;) {
    const key = kept.get("key", "");
    const headers = options.body ? { "content-type": "application/json" } : {};
    if (key) headers.authorization = `Bearer ${key}`;
    const response = await fetch(new URL(path, base), { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    let message = `the server answers with status ${response.status}`;
    try {
      const body = await response.json();
      message = body.error?.message ?? body.message ?? message;
    } catch { /* it is no JSON */ }
    if (response.status !== 401) throw new ApiProblem(response.status, message);
    if (!asking && kept.get("key", "") === key) askForKey(key ? message : "");
    await asking;  // of this request or of another one
  }
}

let asking = null;

/** Ask for the key, once for all requests that wait for it. */
function askForKey(problem) {
  kept.drop("key");
  $("key-error").hidden = !problem;
  put($("key-error"), problem);
  asking = new Promise((resolve) => {
    const dialog = $("key-dialog");
    dialog.oncancel = (event) => event.preventDefault();
    $("key-form").onsubmit = () => {
      kept.set("key", $("key").value.trim());
      $("key").value = "";
      $("forget").hidden = false;
      asking = null;
      resolve();
    };
    dialog.showModal();
  });
}

/** Yield the data of each event of a stream, until it ends. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

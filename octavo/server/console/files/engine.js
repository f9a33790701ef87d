// The engine, live: the frames of /v1/live as figures, plots, bars and maps.

const plots = {
  rate: new Plot("Throughput, tok/s", ["generated", "prompts"], count),
  first: new Plot("Time to first token", ["mean", "p95"], time),
  between: new Plot("Between tokens", ["mean", "p95"], time),
  memory: new Plot("KV memory in use", ["in use"], (value) => `${Math.round(value)} %`, 100),
  drafts: new Plot("Drafts accepted", ["accepted"], (value) => `${Math.round(value)} %`, 100),
};
const STATES = {
  ready: "ready", paused: "paused by an operator", draining: "shutting down", sleeping: "asleep",
  restarting: "the engine is being restarted", stopped: "the engine has stopped",
};
const WAITING = {
  admission: "queued", submitted: "submitted", waiting: "waits", held: "held", prefill: "prefill", decode: "decode",
};
const LACKS = {
  slots: "a slot (max_num_seqs)", budget: "room in the steps (max_num_batched_tokens)",
  pace: "room in the steps, whose time is bounded (itl_goal)", blocks: "free KV blocks",
  adapters: "a slot for its adapter (max_loras)", prefix: "a prefix that another request computes",
  paused: "an engine that is not paused", share: "its turn: its key has its share", turn: "the next step",
};
let before = null;
let latest = null;
const maps = new Map();

const sum = (list, read) => list.reduce((total, each) => total + read(each), 0);

/** Return whether a live request has this id, before which an answer's id has a prefix. */
const isOf = (id, live) => id === live.id || id.endsWith(`-${live.id}`);

/** Return the totals of all models that were there in both frames. */
function changes(frame) {
  const found = { seconds: 0, generated: 0, prompts: 0, drafts: 0, accepted: 0 };
  if (!before || frame.uptime_seconds <= before.uptime_seconds) return found;
  found.seconds = frame.uptime_seconds - before.uptime_seconds;
  for (const model of frame.models) {
    const then = before.models.find((each) => each.name === model.name);
    if (!then) continue;
    const change = (name) => Math.max(0, sum(model.engines, (each) => each[name]) - sum(then.engines, (each) => each[name]));
    found.generated += Math.max(0, model.generated_tokens - then.generated_tokens);
    found.prompts += change("prefill_tokens");
    found.drafts += change("drafts");
    found.accepted += change("accepted_drafts");
  }
  return found;
}

function merged(models, name) {
  const found = models.map((each) => each[name]).filter((each) => each.count);
  const all = sum(found, (each) => each.count);
  if (!all) return [null, null];
  return [sum(found, (each) => each.mean_ms * each.count) / all, Math.max(...found.map((each) => each.p95_ms))];
}

function figure(title, value, more) {
  return el("dl", "figure", el("dt", "", title), el("dd", "", value, more ? el("small", "", ` ${more}`) : null));
}

function modelOf(model) {
  const engines = model.engines;
  const running = sum(engines, (each) => each.running);
  const waiting = model.queue_requests + sum(engines, (each) => each.waiting);
  const slots = sum(engines, (each) => each.slots);
  const state = el("small", "", el("i", "mark"), STATES[model.state]);
  state.dataset.state = { ready: "good", stopped: "bad" }[model.state] ?? "wait";
  const figures = [
    figure("Running", count(running), `of ${count(slots)}`),
    figure("Waiting", count(waiting), model.expected_wait_seconds && waiting ? `about ${time(1000 * model.expected_wait_seconds)}` : ""),
    figure("Step", time(Math.max(...engines.map((each) => each.step_ms), 0)), `longest ${time(Math.max(...engines.map((each) => each.longest_step_ms), 0))}`),
    figure("Prompt tokens cached", count(sum(engines, (each) => each.cached_tokens)), `of ${count(sum(engines, (each) => each.cached_tokens + each.prefill_tokens))}`),
    figure("Preemptions", count(sum(engines, (each) => each.preemptions))),
  ];
  const deaths = sum(engines, (each) => each.deaths);
  if (deaths) figures.push(figure("Engine deaths", count(deaths), `${count(sum(engines, (each) => each.restarts))} restarts`));
  if (engines.length > 1) figures.push(figure("Engines ready", count(engines.filter((each) => each.is_ready).length), `of ${engines.length}`));
  const why = engines.map((each) => each.blocked_by).find(Boolean);
  return el(
    "section", "model", el("h2", "", model.name, state), el("div", "figures-row", ...figures),
    waiting && why ? el("p", "hint", `The first that waits lacks ${LACKS[why] ?? why}.`) : null,
  );
}

/** Return the parts of a request's bar as shares of its whole length. */
function shares(request) {
  const most = Math.max(request.most_tokens ?? request.known_tokens, request.known_tokens, 1);
  const computed = Math.min(request.computed_tokens, request.prompt_tokens);
  const cached = Math.min(request.cached_tokens, computed);
  const generated = Math.max(0, request.known_tokens - request.prompt_tokens);
  return [cached, computed - cached, generated].map((each) => (100 * each) / most);
}

function newRow(id) {
  const name = button(id, () => openTimeline(id), "");
  const parts = ["cached", "prefill", "decode"].map((kind) => el("span", kind));
  const bar = el("div", "bar", ...parts);
  bar.setAttribute("role", "img");
  const row = el("li", "request", name, bar, el("span", "numbers-of"));
  const choose = (chosen) => { for (const map of maps.values()) map.choose(chosen); };
  row.addEventListener("pointerenter", () => choose(id));
  row.addEventListener("pointerleave", () => choose(undefined));
  name.addEventListener("focus", () => choose(id));
  name.addEventListener("blur", () => choose(undefined));
  return row;
}

function showRow(row, request) {
  const [, bar, numbers] = row.children;
  const [cached, prefill, decode] = shares(request);
  [cached, prefill, decode].forEach((share, index) => { bar.children[index].style.width = `${share}%`; });
  const generated = Math.max(0, request.known_tokens - request.prompt_tokens);
  const reason = request.reason ? ` for ${request.reason}` : "";
  put(numbers, `${WAITING[request.state]}${reason} ${count(request.prompt_tokens)}+${count(generated)} ${time(request.age_ms)}`);
  bar.setAttribute("aria-label", `${WAITING[request.state]}${reason}: ${count(request.cached_tokens)} tokens cached, ${count(request.computed_tokens)} computed, ${count(generated)} generated`);
}

/** Show the requests, and reuse the rows, so that the focus stays where it is. */
const rows = new Map();
function showRequests(requests) {
  const seen = new Set();
  const list = $("running");
  requests.forEach((request, index) => {
    let name = `${request.model} ${request.id}`;
    while (seen.has(name)) name += "'";
    seen.add(name);
    if (!rows.has(name)) rows.set(name, newRow(request.id));
    const row = rows.get(name);
    showRow(row, request);
    if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
  });
  for (const [name, row] of rows) if (!seen.has(name)) { row.remove(); rows.delete(name); }
}

function endedOf(each) {
  return el(
    "li", "", button(each.id, () => openTimeline(each.id), ""),
    el("span", "", `${each.outcome}, ${count(each.prompt_tokens)}+${count(each.generated_tokens)} tokens in ${time(each.total_ms)}`),
  );
}

let shownEnded = "";
function showEnded(ended) {
  const name = ended.map((each) => each.id + each.total_ms).join();
  if (name === shownEnded) return;
  const at = [...$("ended").children].findIndex((each) => each.contains(document.activeElement));
  const focused = at < 0 ? null : $("ended").children[at].querySelector("button").textContent;
  shownEnded = name;
  const items = ended.slice(0, 12).map(endedOf);
  $("ended").replaceChildren(...items);
  items.find((each) => each.querySelector("button").textContent === focused)?.querySelector("button").focus();
}

function showMaps(frame) {
  const names = new Set();
  const several = frame.models.length > 1;
  for (const model of frame.models) {
    model.engines.forEach((engine, index) => {
      const title = [several ? model.name : "", model.engines.length > 1 ? `engine ${index}` : ""].filter(Boolean).join(", ");
      const name = `${model.name} ${index}`;
      names.add(name);
      if (!maps.has(name)) {
        maps.set(name, new BlockMap(title));
        $("maps").append(maps.get(name).element);
      }
      maps.get(name).show(engine, frame.requests.filter((each) => each.model === model.name && each.engine === index));
    });
  }
  for (const [name, map] of maps) if (!names.has(name)) { map.element.remove(); maps.delete(name); }
}

function showPlots(frame) {
  const change = changes(frame);
  const rate = (value) => (change.seconds ? value / change.seconds : null);
  plots.rate.add(rate(change.generated), rate(change.prompts));
  plots.first.add(...merged(frame.models, "first_token"));
  plots.between.add(...merged(frame.models, "between_tokens"));
  const engines = frame.models.flatMap((each) => each.engines);
  const blocks = sum(engines, (each) => each.blocks);
  plots.memory.add(blocks ? 100 * (1 - sum(engines, (each) => Math.min(each.blocks, each.free_blocks)) / blocks) : null);
  plots.drafts.element.hidden = !engines.some((each) => each.drafts);
  plots.drafts.add(change.drafts ? (100 * change.accepted) / change.drafts : null);
}

function showFrame(frame) {
  latest = frame;
  showState(frame);
  showPlots(frame);  // also while the page shows the chat, so that nothing is missing
  before = frame;
  if (!$("engine").hidden) showEngine(frame);
}

function showEngine(frame) {
  $("models").replaceChildren(...frame.models.map(modelOf));
  if (!frame.models.length) $("models").replaceChildren(el("p", "empty", "No model is loaded yet; the first request for one loads it."));
  showRequests(frame.requests);
  $("none").hidden = frame.requests.length > 0;
  const more = frame.left_out ? `${count(frame.left_out)} more are not listed. ` : "";
  put($("others"), more + (frame.is_shared ? "Requests of other keys are counted above, and not listed." : ""));
  const running = frame.requests.filter((each) => each.state === "decode" || each.state === "prefill").length;
  put($("running-count"), frame.requests.length ? `${running} running, ${frame.requests.length - running} waiting` : "");
  showEnded(frame.ended);
  showMaps(frame);
}

let shownState = "";
function setState(state, text) {
  $("state").dataset.state = state;
  put($("state").querySelector("span"), text);
  if (shownState && shownState !== text && state !== shownState) say(text);
  shownState = text;
}

function showState(frame) {
  const away = frame.models.find((each) => each.state !== "ready");
  if (!away) setState("good", "ready");
  else setState(away.state === "stopped" ? "bad" : "wait", STATES[away.state]);
}

/** Follow the stream for as long as the page is open and seen. */
async function follow() {
  for (;;) {
    const stop = new AbortController();
    const leave = () => { if (document.hidden) stop.abort(); };
    document.addEventListener("visibilitychange", leave);
    try {
      const response = await api("v1/live", { signal: stop.signal });
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        showFrame(JSON.parse(data));
      }
      if (!document.hidden) setState("bad", "the stream has ended");
    } catch (error) {
      if (error instanceof ApiProblem) {
        setState(error.status === 429 ? "wait" : "bad", error.status === 404 ? "no live stream here" : error.message);
        if (error.status === 404) return;
      } else if (!stop.signal.aborted) setState("bad", "the server cannot be reached");
    }
    document.removeEventListener("visibilitychange", leave);
    before = null;
    while (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    await pause(2000);
  }
}

function startEngine() {
  $("plots").append(...Object.values(plots).map((each) => each.element));
  follow();
}

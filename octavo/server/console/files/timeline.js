// Where one request spent its time: the sentence of /v1/requests/ID/explain, and its phases as lanes.

const PHASES = {
  template: "chat template", tokenize: "tokenising", admission: "admission queue", queue: "engine's queue",
  prefill: "prefill", decode: "decode", preempted: "recomputed after a preemption",
  recomputed: "recomputed after a death", restart: "without an engine", lost: "lost with an engine",
  preemptions: "preemptions",
};
const WAITS = new Set(["admission", "queue", "restart", "lost"]);
let shownId = null;
let opener = null;

function phaseRow(part, total) {
  const lane = el("i", WAITS.has(part.what) ? "wait" : part.what.startsWith("decode") ? "" : "prefill");
  lane.style.left = `${(100 * Math.min(part.at_ms, total)) / total}%`;
  lane.style.width = `${(100 * part.took_ms) / total}%`;
  let more = "";
  if (part.from_token !== undefined) more = `tokens ${count(part.from_token)}–${count(part.to_token)}`;
  if (part.steps !== undefined) more = `${count(part.steps)} steps`;
  if (part.count !== undefined) more = `${count(part.count)}, ${count(part.lost)} tokens lost`;
  if (part.reasons_ms) more = Object.entries(part.reasons_ms).map(([name, ms]) => `${name} ${time(ms)}`).join(", ");
  return el(
    "tr", "", el("td", "", PHASES[part.what] ?? part.what), el("td", "number at", time(part.at_ms)),
    el("td", "number", time(part.took_ms)), el("td", "wide", el("div", "lane", lane)), el("td", "", more),
  );
}

/** Say how far a request is that still runs: its engine reports the phases at its end. */
function progressOf(found) {
  const live = latest?.requests.find((each) => isOf(found.request_id, each));
  if (!live) return "It is still running.";
  const generated = count(Math.max(0, live.known_tokens - live.prompt_tokens));
  return `It is still running (${WAITING[live.state]}): ${count(live.computed_tokens)} tokens computed, ${generated} generated. Its phases in the engine are known at its end.`;
}

function timelineOf(found) {
  const total = Math.max(found.total_ms, 0.001);
  const heads = ["phase", "at", "took", "", ""].map((each, index) => {
    const head = el("th", ["", "number at", "number"][index] ?? "", each);
    head.scope = "col";
    return head;
  });
  const rows = found.timeline.filter((part) => part.took_ms > 0 || part.count).map((part) => phaseRow(part, total));
  const facts = [
    found.outcome, `${time(found.total_ms)} in all`, `first byte ${time(found.time_to_first_byte_ms)}`,
    `${count(found.prompt_tokens)} prompt tokens${found.cached_tokens ? ` (${count(found.cached_tokens)} cached)` : ""}`,
    `${count(found.completion_tokens)} generated`,
  ];
  if (found.drafted_tokens) facts.push(`${count(found.accepted_draft_tokens)} of ${count(found.drafted_tokens)} drafts accepted`);
  return [
    el("p", "cause", found.outcome === "running" ? progressOf(found) : found.cause), el("p", "hint", facts.join(" · ")),
    el("table", "phases", el("thead", "", el("tr", "", ...heads)), el("tbody", "", ...rows)),
  ];
}

async function openTimeline(id) {
  const panel = $("timeline");
  if (panel.hidden) opener = document.activeElement;
  shownId = id;
  panel.hidden = false;
  put($("timeline-title"), `Timeline of ${id}`);
  const show = (...parts) => { if (shownId === id) $("timeline-body").replaceChildren(...parts); };
  show(el("p", "hint", "asking the server"));
  panel.focus();
  for (;;) {
    let found;
    try {
      found = await (await api(`v1/requests/${encodeURIComponent(id)}/explain`)).json();
    } catch (error) {
      show(el("p", "error", error instanceof ApiProblem ? error.message : "the server cannot be reached"));
      return;
    }
    if (shownId !== id || panel.hidden) return;
    show(...timelineOf(found));
    if (found.outcome !== "running") return;
    await pause(1000);
  }
}

function closeTimeline() {
  if ($("timeline").hidden) return false;
  $("timeline").hidden = true;
  shownId = null;
  const back = opener?.isConnected ? opener : $("question").offsetParent ? $("question") : $("main");
  back.focus({ preventScroll: true });
  return true;
}

function startTimeline() { $("timeline-close").addEventListener("click", closeTimeline); }

// The settings beside the conversation: model, system prompt, sampling, tools; kept in this tab.

const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1], ["max_tokens", "Most tokens", 1, null, 1],
  ["top_p", "Top p", 0, 1, 0.05], ["top_k", "Top k", -1, null, 1],
  ["min_p", "Min p", 0, 1, 0.01], ["seed", "Seed", 0, null, 1],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1],
  ["repetition_penalty", "Repetition penalty", 0.01, 2, 0.05],
];

function makeNumbers() {
  const values = kept.get("numbers", {});
  for (const [name, title, least, most, step] of NUMBERS) {
    const field = el("input", "");
    Object.assign(field, { type: "number", id: `n-${name}`, step: step === 1 ? 1 : "any", min: least ?? "", max: most ?? "" });
    field.value = values[name] ?? "";
    field.addEventListener("change", () => {
      kept.set("numbers", Object.fromEntries(NUMBERS.map(([each]) => [each, $(`n-${each}`).value])));
    });
    const label = el("label", "", title);
    label.htmlFor = field.id;
    $("numbers").append(el("div", "", label, field));
  }
}

/** Return the tools of the field; null, and an error beside it, if it is no list of them. */
function toolsGiven() {
  const text = $("tools").value.trim();
  const fail = (why) => {
    put($("tools-error"), why);
    $("tools-error").hidden = !why;
    $("tools").setAttribute("aria-invalid", String(Boolean(why)));
    return null;
  };
  fail("");
  if (!text) return [];
  try {
    const found = JSON.parse(text);
    const list = Array.isArray(found) ? found : [found];
    if (list.every((each) => each?.type === "function" && each.function?.name)) return list;
    return fail("each tool needs {\"type\": \"function\", \"function\": {\"name\": …}}");
  } catch (error) {
    return fail(`this is not JSON: ${error.message}`);
  }
}

/** Return the parts of a request that the settings make; null if one of them is wrong. */
function requestParts() {
  const tools = toolsGiven();
  if (tools === null) { $("settings").open = true; $("tools").focus(); return null; }
  const parts = { model: $("model").value };
  for (const [name] of NUMBERS) {
    const field = $(`n-${name}`);
    if (!field.checkValidity()) { $("settings").open = true; field.reportValidity(); return null; }
    if (field.value !== "") parts[name] = Number(field.value);
  }
  if (tools.length) parts.tools = tools;
  if ($("probabilities").checked) Object.assign(parts, { logprobs: true, top_logprobs: 5 });
  return parts;
}

async function startSettings() {
  makeNumbers();
  for (const name of ["system", "tools"]) {
    $(name).value = kept.get(name, "");
    $(name).addEventListener("input", () => kept.set(name, $(name).value));
  }
  $("tools").addEventListener("change", toolsGiven);
  $("probabilities").checked = kept.get("probabilities", false);
  $("probabilities").addEventListener("change", () => kept.set("probabilities", $("probabilities").checked));
  if (matchMedia("(max-width: 52rem)").matches) $("settings").open = false;
  const listed = await (await api("v1/models")).json();
  const names = listed.data.map((each) => each.id);
  $("model").replaceChildren(...names.map((name) => new Option(name, name)));
  const chosen = kept.get("model", names[0]);
  if (names.includes(chosen)) $("model").value = chosen;
  $("model").addEventListener("change", () => kept.set("model", $("model").value));
  $("model-row").hidden = names.length < 2;
}

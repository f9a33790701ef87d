// The page as a whole: which view is shown, the keys that work everywhere, the start.

function showView() {
  const name = location.hash === "#engine" ? "engine" : "chat";
  for (const each of ["chat", "engine"]) {
    $(each).hidden = each !== name;
    if (each === name) $(`to-${each}`).setAttribute("aria-current", "page");
    else $(`to-${each}`).removeAttribute("aria-current");
  }
  document.title = name === "engine" ? "Octavo: engine" : "Octavo";
  hideLikely();
  if (name === "engine" && latest) showEngine(latest);
  if (name === "chat") { scroll(true); $("question").focus({ preventScroll: true }); }
}

addEventListener("hashchange", showView);
addEventListener("keydown", (event) => {
  if (event.altKey && (event.key === "1" || event.key === "2")) {
    event.preventDefault();
    location.hash = event.key === "1" ? "#chat" : "#engine";
  }
  if (event.key === "Escape" && !$("key-dialog").open && !closeTimeline()) running?.abort();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const map of maps.values()) map.draw();
});
$("forget").hidden = !kept.get("key", "");
$("forget").addEventListener("click", () => { kept.drop("key"); location.reload(); });

startChat();
startTimeline();
startEngine();
showView();
startSettings().catch((error) => setState("bad", error instanceof ApiProblem ? error.message : "the server cannot be reached"));

// ---- tabs ----

const VIEWS = {};
if (data.pictures) Object.assign(VIEWS, { Graph: () => pictureView("graph"), Kernels: () => pictureView("kernels"), Steps: stepsView, Paths: pathsView, Memory: memoryView });
if (data.run) VIEWS.Run = runView;
if (data.front?.length) VIEWS.Front = frontView;
if (data.roofline?.kernels.length) VIEWS.Roofline = rooflineView;
if (data.live || data.database) Object.assign(VIEWS, { Database: databaseView, Suspect: suspectView, Failures: failuresView, Coverage: coverageView, Searches: searchesView });
if (data.live) VIEWS.Live = liveView;
const kept = {};
function open(name) {
  for (const button of tabs.children) { const here = button.textContent === name; button.setAttribute("aria-selected", here); button.tabIndex = here ? 0 : -1; }
  details.replaceChildren();
  kept[name] ??= VIEWS[name]();
  view.setAttribute("aria-label", name);
  view.replaceChildren(...kept[name]);
  view.dispatchEvent(new Event("scroll"));
}
for (const name of Object.keys(VIEWS)) tabs.append(el("button", { role: "tab", onclick: () => { location.hash = name; } }, name));
tabs.addEventListener("keydown", event => {
  const names = Object.keys(VIEWS), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (move) { const next = names[(names.indexOf(event.target.textContent) + move + names.length) % names.length]; location.hash = next; tabs.children[names.indexOf(next)].focus(); }
});
const here = () => VIEWS[location.hash.slice(1)] ? location.hash.slice(1) : Object.keys(VIEWS)[0];
window.addEventListener("hashchange", () => open(here()));
if (data.pictures) {
  const at = sizesText(data.at), doubts = Object.values(data.steps).filter(step => step.suspect).length;
  document.getElementById("summary").textContent = `steps add up to ${micros(data.us)}${at ? " at " + at : ""}, ${Math.round(100 * data.measured_share)} % of it measured${doubts ? ` (${doubts} of ${Object.keys(data.steps).length} kinds of steps suspect)` : ""}${data.run ? `; a run took ${micros(data.run.otherData.one_go_us)}` : ""} · ${data.asked} · path ${data.path} · ${data.backends.join(", ")}`;
} else document.getElementById("summary").textContent = "measurements of kernels";
open(here());

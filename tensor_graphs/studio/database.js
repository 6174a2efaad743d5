
// ---- a database of measurements: its views come from the server, or from this file ----

async function ask(name, query = {}) {
  const stored = (data.database || {})[name];
  if (!data.live) return Object.values(query).some(Boolean) || stored === undefined ? Promise.reject(new Error("a page in one file has no such rows: `tg studio` serves them")) : stored;
  const response = await fetch(`api/${name}?` + new URLSearchParams(Object.entries(query).filter(([, value]) => value)));
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}
function later(make) {
  // A holder that is filled once what it shows has come.
  const holder = el("div"), again = () => {
    holder.setAttribute("aria-busy", "true");
    holder.replaceChildren("…");
    const failed = error => [el("p", { class: "warn" }, String(error.message || error)), data.live ? el("button", { onclick: again }, "try again") : null].filter(Boolean);
    make().catch(failed).then(children => { holder.replaceChildren(...children); holder.removeAttribute("aria-busy"); });
  };
  again();
  return holder;
}
const sizesText = sizes => Object.entries(sizes).map(([name, size]) => `${name}=${size}`).join(", ");
const ms = value => value === null || value === undefined ? "–" : micros(value * 1000);
const when = row => row.when.replace("T", " ").replace("+00:00", "");

function withChoice(caption, make, extra = {}) {
  // A view with a choice of the environment, and a text to search for where `extra` says so.
  const holder = el("div"), place = el("select", { "aria-label": "environment" }, el("option", { value: "" }, "every environment")), find = el("input", { type: "search", placeholder: "kernel or graph", "aria-label": "kernel or graph" });
  const fill = () => holder.replaceChildren(later(() => make({ environment: place.value, text: find.value })));
  if (data.live) {
    ask("totals").then(totals => place.append(...totals.environments.map(one => el("option", { value: one.environment }, `${one.hardware}, ${one.backend} (${one.environment.slice(0, 8)})`))), () => {});   // what the view itself asks for says why
    place.addEventListener("change", fill);
    find.addEventListener("change", fill);
  }
  fill();
  return [el("p", {}, caption), data.live ? el("div", { class: "controls" }, place, extra.search ? find : null) : null, holder].filter(Boolean);
}

const GROUP = [["kernel", row => row.kernel, null, true], ["graph", row => row.graph, null, true], ["sizes", row => sizesText(row.sizes), null, true], ["where", row => row.hardware, null, true], ["times", row => row.times],
  ["lowest", row => row.lowest_ms, row => ms(row.lowest_ms)], ["highest", row => row.highest_ms, row => ms(row.highest_ms)], ["highest ÷ lowest", row => row.highest_ms / row.lowest_ms, row => row.lowest_ms ? number(row.highest_ms / row.lowest_ms) : "–"],
  ["error", row => row.error, row => row.error === null ? "–" : number(row.error)], ["failures", row => row.failures, row => row.failures ? el("span", { class: "warn" }, row.failures) : "0"]];
const ROW = [["row", row => row.trace], ["when", row => when(row), null, true], ["kernel", row => row.kernel, null, true], ["graph", row => row.graph, null, true], ["sizes", row => sizesText(row.sizes), null, true], ["kind", row => row.kind, null, true],
  ["time", row => row.median_ms, row => ms(row.median_ms)], ["spread", row => row.spread, row => row.spread === null ? "–" : `${(100 * row.spread).toFixed(1)} %`], ["error", row => row.error, row => row.error === null ? "–" : number(row.error)],
  ["", row => row.status, row => row.status === "PASSED" ? "" : el("span", { class: "warn" }, row.status)]];

function showTrace(row) {
  details.replaceChildren(el("h2", {}, `row ${row.trace}`), later(async () => {
    const full = await ask("trace", { trace: row.trace }), samples = full.samples_ms;
    return [el("dl", {}, ...[["kernel", full.kernel], ["graph", full.graph], ["sizes", sizesText(full.sizes)], ["where", full.hardware], ["when", when(full)], ["outcome", full.status], ["state", full.standing], ["time", ms(full.median_ms)], ["error", full.error === null ? "not compared" : number(full.error)], ["tolerance", full.tolerance === null ? "" : number(full.tolerance)]]
        .filter(([, value]) => value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      samples.length > 1 ? scatter("samples of a row", samples.map((value, k) => ({ x: k, y: value * 1000, r: 3, title: `sample ${k}: ${ms(value)}` })), { x: "sample", y: "time", logX: false, logY: false, showY: micros, width: 340, height: 220 }) : null,
      full.log ? el("pre", {}, full.log) : null].filter(Boolean);
  }));
}
function showHistory(group) {
  details.replaceChildren(el("h2", {}, group.kernel), later(async () => {
    const rows = (await ask("history", { kernel: group.code || group.kernel, environment: group.environment })), own = rows.filter(row => sizesText(row.sizes) === sizesText(group.sizes) && row.key === group.key), timed = own.filter(row => row.median_ms !== null);
    const days = timed.length ? (Date.parse(timed[0].when) - Date.parse(timed.at(-1).when)) / 864e5 : 0, showX = value => new Date(value).toISOString().slice(...(days > 2 ? [0, 10] : [11, 19]));
    const reasons = group.failures ? await ask("failures", { kernel: group.code || group.kernel, environment: group.environment }) : [];
    return [el("p", {}, `${group.graph}, ${sizesText(group.sizes)}, ${group.hardware}`),
      timed.length ? scatter("times of this kernel", timed.map(row => ({ x: Date.parse(row.when), y: row.median_ms * 1000, r: 4, hollow: row.status !== "PASSED", title: `row ${row.trace}, ${when(row)}: ${ms(row.median_ms)}`, pick: () => showTrace(row) })), { x: "when", y: "time", logX: false, logY: false, showX, showY: micros, width: 340, height: 240, leastX: 6e4 }) : null,
      ...reasons.slice(0, 5).map(one => el("p", { class: "warn" }, `row ${one.trace}: ${one.status}: ${one.reason}`)),
      table(`${own.length} rows`, [["row", row => row.trace], ["when", row => when(row), null, true], ["time", row => row.median_ms, row => ms(row.median_ms)], ["", row => row.status === "PASSED" ? row.kind : row.status, null, true]], own, showTrace)].filter(Boolean);
  }));
}

function databaseView() {
  const totals = later(async () => {
    const { location, last, environments } = await ask("totals");
    return [el("p", {}, `${location}, newest row ${last}`), table("Rows by environment", [["where", row => row.hardware, null, true], ["backend", row => row.backend, null, true], ["passed", row => row.statuses.PASSED || 0],
      ["did not pass", row => Object.entries(row.statuses).reduce((n, [status, count]) => status === "PASSED" ? n : n + count, 0)], ["key", row => row.environment.slice(0, 12), null, true]], environments)];
  });
  return [totals, el("h2", {}, "Kernels"), ...withChoice("A row for each kernel that was timed alone, by graph, sizes and environment; comparisons and whole paths are counted above only. A row opens the kernel's history.", async query => {
    const rows = await ask("kernels", query);
    return [table(rows.length ? `${rows.length} rows${rows.length === 500 ? ", the first ones: search for others" : ""}` : "No kernel was timed here: tg profile", GROUP, rows, data.live ? showHistory : null)];
  }, { search: true })];
}
function suspectView() {
  const doubted = Object.values(data.steps || {}).filter(step => step.suspect);
  const mine = doubted.length ? [el("h2", {}, "Steps of this plan"), table("tg profile measures them again.", [["step", stepName, null, true], ["kernel", step => step.kernel, null, true], ["a call", step => step.us_per_call, step => micros(step.us_per_call)],
    ["spread", step => step.spread, step => step.spread === null ? "–" : percent(step.spread)], ["why it is suspect", step => step.suspect, null, true]], doubted, step => details.replaceChildren(el("h2", {}, stepName(step)), ...reasons(step))), el("h2", {}, "All measurements")] : [];
  return [...mine, ...withChoice("Times of the same kernel on the same sizes that disagree: the machine was slowed down in between, and the lowest may be of a quiet moment. tg profile measures again.",
    async query => { const rows = await ask("disturbed", query); return [table(rows.length ? `${rows.length} kernels` : "No kernel was timed twice with times that disagree; one that was timed once has nothing to be compared with.", GROUP, rows, data.live ? showHistory : null)]; })];
}
function failuresView() {
  return withChoice("Rows that did not pass, the newest first, with what explains them.",
    async query => { const rows = await ask("failures", query); return [table(rows.length ? `${rows.length} rows` : "Every row passed.", [...ROW, ["why", row => row.reason, null, true]], rows, data.live ? showTrace : null)]; });
}
function coverageView() {
  return withChoice("Graphs of which requests wait in the queue come first.", async query => {
    const rows = await ask("coverage", query);
    return [table(`${rows.length} graphs`, [["graph", row => row.graph, null, true], ["key", row => row.key.slice(0, 12), null, true], ["measured", row => row.measured], ["passed", row => row.passed], ["waiting", row => row.waiting], ["share", row => row.fraction, row => `${(100 * row.fraction).toFixed(0)} %`]], rows)];
  });
}
function searchesView() {
  return withChoice("Searches for schedules: the time of each trial ÷ that of the seed, and the best until then.", async query => {
    const rows = await ask("searches", query), groups = Object.values(Object.groupBy ? Object.groupBy(rows, row => row.environment + row.workload) : rows.reduce((all, row) => { (all[row.environment + row.workload] ??= []).push(row); return all; }, {}));
    if (!groups.length) return [el("p", {}, "No search was stored: tg profile --tune")];
    return groups.slice(-12).reverse().flatMap(trials => {
      const ratios = trials.map(row => row.speedup_factor ? 1 / row.speedup_factor : null).map((ratio, k) => [k, ratio]).filter(([, ratio]) => ratio !== null);
      let best = Infinity;
      const lowest = ratios.map(([k, ratio]) => [k, best = Math.min(best, ratio)]);
      return [el("h2", {}, `${trials[0].graph} at ${sizesText(trials[0].sizes)}: ${trials.length} trials`), ratios.length ? scatter("trials of a search", ratios.map(([k, ratio]) => ({ x: k, y: ratio, r: 3, hollow: true, title: `${trials[k].kernel}: ${number(ratio)} of the seed's time` })), { x: "trial", y: "÷ seed", logX: false, logY: false, height: 220, lines: [{ points: lowest }] }) : el("p", {}, "no trial ran")];
    });
  });
}
function liveView() {
  const rows = [], holder = el("div"), state = el("p", { role: "status", "aria-live": "polite" }, "waiting for new rows: tg profile in another terminal adds some");
  let added = 0;
  const source = new EventSource("api/rows");
  source.onmessage = event => {
    const fresh = JSON.parse(event.data);
    added += fresh.length;
    rows.unshift(...fresh.reverse());
    rows.length = Math.min(rows.length, 200);
    state.textContent = `${added} rows since this page was opened`;
    holder.replaceChildren(table("The newest first", ROW, rows, showTrace));
  };
  source.onopen = () => { if (!added) state.textContent = "waiting for new rows: tg profile in another terminal adds some"; };
  source.onerror = () => { state.textContent = added ? `${added} rows; the server does not answer now; the page goes on asking` : "the server does not answer now; the page goes on asking"; };
  return [state, holder];
}

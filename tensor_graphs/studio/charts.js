
// ---- charts: points on two axes ----

function ticks(low, high, logarithmic) {
  if (!logarithmic) {
    const step = 10 ** Math.floor(Math.log10((high - low || 1) / 4)), every = [1, 2, 5, 10].map(k => k * step).find(s => (high - low) / s <= 6) || step;
    const first = Math.ceil(low / every);
    return Array.from({ length: Math.max(0, Math.floor(high / every) - first + 1) }, (_, k) => (first + k) * every);
  }
  const out = [], span = Math.log10(high / low);
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) for (const digit of span > 2.5 ? [1] : span > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) out.push(digit * 10 ** e);
  const inside = out.filter(v => v >= low && v <= high), every = Math.ceil(inside.length / 9);
  return inside.filter((_, k) => k % every === 0);
}

function scatter(label, points, { x, y, logX = true, logY = true, showX = number, showY = number, lines = [], width = 820, height = 420, leastX = 0 }) {
  // points: {x, y, title, colour, hollow, r, pick}. lines: [[x, y], ...] that are joined, as {points, colour, label}. Values of 0 or
  // less have no logarithm: they lie on the lower border. leastX: what the axis of x spans at least.
  const left = 78, right = 18, top = 14, bottom = 44, root = chart(width, height, label);
  const scale = (values, logarithmic, from, to, least = 0) => {
    const usable = values.filter(v => Number.isFinite(v) && (!logarithmic || v > 0));
    let low = Math.min(...usable), high = Math.max(...usable);
    if (!usable.length) [low, high] = [1, 10];
    if (logarithmic) { low /= 1.25; high *= 1.25; } else { const pad = Math.max((high - low || (least ? 0 : Math.abs(high) || 1)) * 0.06, (least - (high - low)) / 2); low -= pad; high += pad; }
    const share = logarithmic ? v => Math.log(Math.max(v, low) / low) / Math.log(high / low) : v => (v - low) / (high - low);
    return [v => from + (to - from) * share(v), ticks(low, high, logarithmic)];
  };
  const corners = lines.flatMap(line => line.points);
  const [px, xs] = scale([...points.map(p => p.x), ...corners.map(c => c[0])], logX, left, width - right, leastX);
  const [py, ys] = scale([...points.map(p => p.y), ...corners.map(c => c[1])], logY, height - bottom, top);
  const text = (at, up, words, anchor) => root.append(svg("text", { class: "axis", x: at, y: up, style: `text-anchor:${anchor}` }, words));
  let last = null;
  for (const v of xs) {
    root.append(svg("line", { class: "grid", x1: px(v), x2: px(v), y1: top, y2: height - bottom }));
    if (last === null || px(v) - last.at > 7 * Math.max(showX(v).length, last.words.length) && showX(v) !== last.words) text(px(v), height - bottom + 16, showX(v), "middle"), last = { at: px(v), words: showX(v) };
  }
  for (const v of ys) { root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py(v), y2: py(v) })); text(left - 6, py(v) + 4, showY(v), "end"); }
  text((left + width - right) / 2, height - 8, x, "middle");
  root.append(svg("text", { class: "axis", x: 14, y: (top + height - bottom) / 2, style: "text-anchor:middle", transform: `rotate(-90 14 ${(top + height - bottom) / 2})` }, y));
  for (const line of lines) {
    root.append(svg("polyline", { class: "joined", points: line.points.map(([a, b]) => `${px(a)},${py(b)}`).join(" "), style: line.colour ? `stroke:${line.colour}` : "" }));
    if (line.label) text(px(line.points.at(-1)[0]) - 4, py(line.points.at(-1)[1]) - 6, line.label, "end");
  }
  for (const p of [...points].sort((a, b) => (b.r || 5) - (a.r || 5))) {     // small ones over large ones
    const colour = p.colour || "var(--accent)";
    const dot = svg("circle", { class: p.pick ? "point" : "", cx: px(p.x), cy: py(p.y), r: p.r || 5, style: `stroke:${colour};fill:${p.hollow ? "var(--back)" : colour}`, role: p.pick ? "button" : "img", "aria-label": p.title });
    dot.append(svg("title", {}, p.title));
    if (p.pick) {
      dot.setAttribute("tabindex", 0);
      const choose = () => { root.querySelectorAll(".picked").forEach(one => one.classList.remove("picked")); dot.classList.add("picked"); p.pick(); };
      dot.addEventListener("click", choose);
      dot.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { choose(); event.preventDefault(); } });
    }
    root.append(dot);
  }
  return root;
}

// ---- forms: time against error ----

function differences(ways) {
  // The parts that one form does otherwise than the plan of this page, and those of the plan, as [heading, [part, kernel] ...].
  const other = (of, than) => Object.entries(of).filter(([name, kernel]) => kernel !== "expand" && than[name] !== kernel);
  return [["only in this plan", other(data.ways, ways)], ["only there", other(ways, data.ways)]].filter(([, rows]) => rows.length);
}
function differing(ways) {
  const lists = differences(ways);
  if (!lists.length) return [el("p", {}, "It runs the same kernels.")];
  return lists.flatMap(([name, rows]) => [el("h2", {}, name), el("table", {}, el("tbody", {}, ...rows.map(cells => el("tr", {}, ...cells.map(cell => el("td", { class: "text" }, cell))))))]);
}

function frontView() {
  // Forms were timed against each other, whole: their times are compared with that of the graph as written, not with a sum of steps.
  const written = data.front.find(point => point.name === "as written"), than = point => written ? point.us / written.us : null;
  const ratio = point => than(point) === null ? "–" : number(than(point)), words = point => each(point.precision, (site, dtype) => `${site} ${dtype}`).join(", ");
  const show = point => details.replaceChildren(el("h2", {}, point.name),
    el("dl", {}, ...[["a run", micros(point.us)], ["÷ as written", ratio(point)], ["error", number(point.error)], ["bound of it", number(point.bound)], ["parameters", bytes(point.parameter_bytes)], ["precision", words(point) || "as written"]].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])), ...differing(point.ways));
  const shape = { x: "time of a run, logarithmic", y: `error (${data.statistic}), logarithmic`, showX: micros };
  return [el("p", {}, "Measured forms of this graph, with fewer and with more bits: none is beaten in time and in error. A click shows what a form does otherwise. Bound: what the error of further draws stays below, with 95 % confidence."),
    scatter("forms, time against error", data.front.map(point => ({ x: point.us, y: point.error, title: `${point.name}: ${micros(point.us)}, error ${number(point.error)}`, pick: () => show(point) })), { ...shape, lines: [{ points: data.front.map(point => [point.us, point.error]) }] }),
    table("The same forms", [["form", row => row.name, null, true], ["a run", row => row.us, row => micros(row.us)], ["÷ as written", than, ratio], ["error", row => row.error, row => number(row.error)],
      ["bound", row => row.bound, row => number(row.bound)], ["parameters", row => row.parameter_bytes, row => bytes(row.parameter_bytes)]], data.front, show)];
}

// ---- roofline: speed against arithmetic per byte ----

function rooflineView() {
  const { kernels, roofs } = data.roofline, drawn = kernels.filter(k => k.flops && k.bytes && k.us_per_call), total = kernels.reduce((sum, k) => sum + k.us_per_call * k.calls, 0) || 1;
  const density = k => k.flops / k.bytes, all = drawn.map(density);
  const lines = roofs.flatMap((roof, r) => Object.entries(roof.flops).map(([name, peak], k) => {
    const bend = peak / roof.bandwidth, low = Math.min(bend, ...all) / 2, high = Math.max(bend, ...all) * 2;
    return { colour: HUES[(r * 3 + k) % HUES.length], label: `${roof.device} ${name.replace("flops_", "")} ${number(peak / 1e9)} Gflop/s, ${number(roof.bandwidth / 1e9)} GB/s${roof.measured ? "" : " (not measured)"}`,
      points: [[low, low * roof.bandwidth / 1e9], [bend, peak / 1e9], [high, peak / 1e9]] };
  })).filter((line, _, every) => every.length <= 6 || line.label.includes("f32"));
  const show = k => details.replaceChildren(el("h2", {}, k.what), el("dl", {}, ...[["kernel", k.kernel], ["calls", k.calls], ["a call", micros(k.us_per_call) + (k.measured ? "" : ", an estimate")], ["at the roof", micros(k.least_us)], ["of its roof", `${(100 * k.share_of_roof).toFixed(0)} % (${k.bound})${k.share_of_roof > 1 ? ": its operands lie in caches, or the roof was measured too low" : ""}`],
    ["lost in a run", micros(k.lost_us)], ["moved", bytes(k.bytes)], ["speed", `${number(k.gflop_per_s)} Gflop/s, ${number(k.gb_per_s)} GB/s`]].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  return [scatter("steps below the roof", drawn.map(k => ({ x: density(k), y: k.gflop_per_s, r: 4 + 14 * Math.sqrt(k.us_per_call * k.calls / total), hollow: !k.measured, title: `${k.kernel} ${k.what}: ${micros(k.us_per_call)} × ${k.calls}, ${(100 * k.share_of_roof).toFixed(0)} % of its roof`, pick: () => show(k) })),
      { x: "arithmetic per byte [flop/byte], logarithmic", y: "speed [Gflop/s], logarithmic", lines }),
    table("Steps, those that lose the most beyond their roof first. Hollow: an estimate. Beyond 100 %: operands lie in caches, or the roof was measured too low.", [["step", k => k.what, null, true], ["kernel", k => k.kernel, null, true], ["calls", k => k.calls], ["a call", k => k.us_per_call, k => micros(k.us_per_call)],
      ["at the roof", k => k.least_us, k => micros(k.least_us)], ["of its roof", k => k.share_of_roof, k => `${(100 * k.share_of_roof).toFixed(0)} %`], ["limit", k => k.bound, null, true], ["lost in a run", k => k.lost_us, k => micros(k.lost_us)]], kernels, show)];
}

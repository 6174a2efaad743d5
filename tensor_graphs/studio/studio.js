"use strict";
// Draws the document in #data. Positions come from it (studio/data.py): here boxes are only moved apart when one of them opens.
const data = JSON.parse(document.getElementById("data").textContent);
const view = document.getElementById("view"), details = document.getElementById("details"), tabs = document.getElementById("tabs");
const SVG = "http://www.w3.org/2000/svg", BESIDE = 18, BELOW = 26, FRAME = 14, LABEL = 16, LANE = 8;

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined).map(child => child instanceof Node ? child : String(child)));
  return node;
}
function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}
function micros(us) {
  if (us === null || us === undefined) return "unknown";
  return us >= 1e6 ? (us / 1e6).toPrecision(3) + " s" : us >= 1000 ? (us / 1000).toPrecision(3) + " ms" : us.toPrecision(3) + " µs";
}
function bytes(n) { return n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " B"; }
function number(x) {
  if (x === null || x === undefined) return "unknown";
  return x !== 0 && Math.abs(x) < 1e-3 ? Number(x).toExponential(1) : String(Number(Number(x).toPrecision(3)));
}
const way = name => name === "expand" ? "its definition" : name;
const stepName = step => step.steps || step.what;
function each(value, step) { return Object.entries(value).map(([name, one]) => step(name, one)); }

// ---- blocks: places of boxes in layers ----

function separate(layer, wanted, widths) {
  // The centres nearest to `wanted` (least squares) at which the boxes of a layer keep their order and do not overlap.
  const offsets = [];
  layer.forEach((e, k) => offsets.push(k ? offsets[k - 1] + (widths[layer[k - 1]] + widths[e]) / 2 + BESIDE : 0));
  const groups = [];
  layer.forEach((e, k) => {
    groups.push([wanted[e] - offsets[k], 1]);
    while (groups.length > 1 && groups.at(-2)[0] / groups.at(-2)[1] > groups.at(-1)[0] / groups.at(-1)[1]) {
      const last = groups.pop();
      groups[groups.length - 1] = [groups.at(-1)[0] + last[0], groups.at(-1)[1] + last[1]];
    }
  });
  let k = 0;
  const centres = {};
  for (const [sum, count] of groups) for (let i = 0; i < count; i++, k++) centres[layer[k]] = sum / count + offsets[k];
  return centres;
}

class Placed {
  // One block with the sizes that its boxes have now. path: names the block among all, for what is open.
  constructor(block, picture, path, state) {
    this.block = block; this.picture = picture; this.inner = {};
    const count = block.elements.length, widths = new Array(count), heights = new Array(count);
    block.elements.forEach((element, k) => {
      const here = path + "/" + k;
      if (element === null) { widths[k] = LANE; heights[k] = 0; return; }
      if (typeof element === "object") {
        if (state.closed.has(here)) { widths[k] = 120; heights[k] = 34; return; }
        this.inner[k] = new Placed(element, picture, here, state);
      } else {
        const box = picture.boxes[element], definition = data.definitions[box.key];
        if (definition && state.open.has(here)) this.inner[k] = new Placed(definition.block, definition, here, state);
        else { [widths[k], heights[k]] = box.size; return; }
      }
      widths[k] = this.inner[k].width; heights[k] = this.inner[k].height;
      if (typeof element === "number") { widths[k] = Math.max(widths[k], picture.boxes[element].size[0]); heights[k] += LABEL; }
    });
    this.path = path; this.widths = widths; this.heights = heights; this.x = new Array(count);
    for (const layer of block.layers) Object.assign(this.x, separate(layer, block.x, widths));
    let left = Infinity, right = 0, y = block.times ? LABEL : 0;
    block.elements.forEach((_, k) => { left = Math.min(left, this.x[k] - widths[k] / 2); });
    block.elements.forEach((_, k) => { this.x[k] += FRAME - left; right = Math.max(right, this.x[k] + widths[k] / 2); });
    this.rank = []; this.tops = []; this.tall = [];
    block.layers.forEach((layer, r) => {
      y += r ? BELOW : FRAME;
      this.tops.push(y);
      this.tall.push(Math.max(0, ...layer.map(k => heights[k])));
      y += this.tall[r];
      layer.forEach(k => { this.rank[k] = r; });
    });
    this.lane = right + LANE;
    this.width = right + FRAME + (block.back.length ? 2 * LANE : 0);
    this.height = y + FRAME;
  }
  middle(k) { return this.tops[this.rank[k]] + this.tall[this.rank[k]] / 2; }
  port(k, source, outgoing) {
    const inner = this.inner[k];
    if (!inner || typeof this.block.elements[k] !== "object") return this.x[k];
    const at = (outgoing ? inner.block.outof : inner.block.into)[source];
    return at === undefined ? this.x[k] : this.x[k] - this.widths[k] / 2 + inner.x[at];
  }
  draw(out, left, top, state) {
    const { block } = this, ports = new Set([...Object.values(block.into), ...Object.values(block.outof)]);
    for (const [a, b, chain] of block.chains) {
      const points = [];
      chain.forEach((k, i) => {
        const x = left + this.port(k, a, i === 0), y = top + this.middle(k);
        if (ports.has(k)) points.push([x, i === 0 ? top : top + this.height]);
        else if (i > 0 && i < chain.length - 1) points.push([x, top + this.tops[this.rank[k]]], [x, top + this.tops[this.rank[k]] + this.tall[this.rank[k]]]);
        else points.push([x, y + (i === 0 ? 1 : -1) * this.heights[k] / 2]);
      });
      const [xs, ys] = [points.map(point => point[0]), points.map(point => point[1])];
      if (state.near(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys))) out.append(svg("path", { class: "arrow", d: curve(points), "data-ends": a + " " + b }));
    }
    for (const [a, b, k, to] of block.back) {
      const x = left + this.port(k, a, true), low = top + this.middle(k) + this.heights[k] / 2, side = left + this.lane;
      const high = top + this.middle(to) - this.heights[to] / 2, end = left + this.x[to];
      const d = `M${x},${low} V${low + BELOW / 3} H${side} V${high - BELOW / 3} H${end} V${high}`;
      out.append(svg("path", { class: "arrow back", d, "data-ends": a + " " + b }));
    }
    block.elements.forEach((element, k) => {
      if (element === null) return;
      const x = left + this.x[k] - this.widths[k] / 2, y = top + this.middle(k) - this.heights[k] / 2;
      if (state.near(x, y, x + this.widths[k], y + this.heights[k]) || state.holds(this.path + "/" + k)) this.box(out, element, k, x, y, state);
    });
  }
  name(k) {
    const element = this.block.elements[k];
    return typeof element === "object" ? `${element.times} times in a row` : this.picture.boxes[element].lines.join(", ");
  }
  inside(k, x, y) { return [x + (typeof this.block.elements[k] === "object" ? 0 : (this.widths[k] - this.inner[k].width) / 2), y + (typeof this.block.elements[k] === "object" ? 0 : LABEL)]; }
  first(words, left, top) {
    // The path and place of the first box, in the order of the layers, whose name holds the words; null if there is none.
    for (const k of this.block.elements.keys()) {
      if (this.block.elements[k] === null) continue;
      const x = left + this.x[k] - this.widths[k] / 2, y = top + this.middle(k) - this.heights[k] / 2;
      if (this.name(k).toLowerCase().includes(words)) return { here: this.path + "/" + k, x: x + this.widths[k] / 2, y: y + this.heights[k] / 2 };
      const found = this.inner[k] && this.inner[k].first(words, ...this.inside(k, x, y));
      if (found) return found;
    }
    return null;
  }
  box(out, element, k, x, y, state) {
    const here = this.path + "/" + k, [w, h, inner] = [this.widths[k], this.heights[k], this.inner[k]];
    const frame = typeof element === "object", box = frame ? null : this.picture.boxes[element], name = this.name(k);
    const group = svg("g", { class: "box", tabindex: -1, role: "treeitem", "aria-label": name, "data-key": box ? box.key : "" });
    if (state.words && name.toLowerCase().includes(state.words)) group.classList.add("chosen");
    if (inner || frame || (data.definitions[box.key] && !box.leaf)) group.setAttribute("aria-expanded", inner ? "true" : "false");
    const shape = { x, y, width: w, height: h, rx: frame ? 8 : 2 };
    if (inner) {
      group.append(svg("rect", { ...shape, class: "frame", "pointer-events": "all" }));
      group.append(svg("text", { class: "count", x: x + w / 2, y: y + 14 }, frame ? "× " + element.times : "− " + box.lines[0]));
    } else if (frame) {
      group.append(svg("rect", { ...shape, class: "frame", "pointer-events": "all" }));
      group.append(svg("text", { class: "count", x: x + w / 2, y: y + h / 2 + 4 }, `${boxes(element)} boxes × ${element.times}`));
    } else {
      const stroke = { fill: state.colour(box), stroke: box.border, "stroke-width": 1 + 7 * (box.share || 0) };
      if (box.dashed) stroke["stroke-dasharray"] = "4 2";
      group.append(box.leaf ? svg("ellipse", { cx: x + w / 2, cy: y + h / 2, rx: w / 2, ry: h / 2, ...stroke }) : svg("rect", { ...shape, ...stroke }));
      const first = y + h / 2 - 13 * (box.lines.length - 1) / 2 + 3.5;
      box.lines.forEach((line, i) => group.append(svg("text", { x: x + w / 2, y: first + 13 * i, class: i ? "" : "title" }, line)));
      if (data.definitions[box.key] && !box.leaf) group.append(svg("text", { x: x + w - 7, y: y + 11 }, "+"));
    }
    group.append(svg("title", {}, name));
    group.place = { here, element, box, inner: Boolean(inner) };
    out.append(group);
    if (inner) inner.draw(out, ...this.inside(k, x, y), state);
  }
}
function boxes(block) { return block.elements.reduce((n, e) => n + (e === null ? 0 : typeof e === "object" ? boxes(e) : 1), 0); }
function curve(points) {
  let [[x, y], ...rest] = points, d = `M${x},${y}`;
  for (const [a, b] of rest) {
    d += Math.abs(a - x) < 0.5 ? ` L${a},${b}` : ` C${x},${y + (b - y) / 2} ${a},${b - (b - y) / 2} ${a},${b}`;
    [x, y] = [a, b];
  }
  return d;
}

// ---- a picture that opens ----

function heat(share) { return `color-mix(in srgb, #d6412b ${Math.round(100 * Math.min(1, share))}%, #eef1f5)`; }

function pictureView(name) {
  const picture = data.pictures[name];
  const most = Math.max(1e-9, ...Object.values(picture.boxes).map(box => box.share || 0));
  const holder = el("div", { role: "tree", "aria-label": name + " of " + data.title });
  let chosen = null, placed = null, drawn = null;
  const state = { open: new Set(), closed: new Set(), byTime: false, words: "", colour: box => box.fill,
    near: (left, top, right, bottom) => left < drawn.right && right > drawn.left && top < drawn.bottom && bottom > drawn.top,
    holds: here => chosen !== null && (chosen === here || chosen.startsWith(here + "/")) };
  const seen = margin => {
    // What of the picture can be seen, and `margin` windows more to each side.
    const [wide, high] = [view.clientWidth || innerWidth, view.clientHeight || innerHeight];
    const left = view.scrollLeft - holder.offsetLeft + view.offsetLeft, top = view.scrollTop - holder.offsetTop + view.offsetTop;
    return { left: left - margin * wide, right: left + (1 + margin) * wide, top: top - margin * high, bottom: top + (1 + margin) * high };
  };
  const paint = () => {
    // Boxes far from the window are left out: a picture may have tens of thousands. Scrolling brings them.
    drawn = seen(1);
    const root = svg("svg", { width: placed.width + 10, height: placed.height + 10 }), focus = holder.contains(document.activeElement);
    root.append(svg("defs"));
    placed.draw(root, 0, 0, state);
    holder.replaceChildren(root);
    const groups = [...root.querySelectorAll("g.box")];
    const focused = groups.find(group => group.place.here === chosen) || groups[0];
    if (focused) { focused.setAttribute("tabindex", 0); if (chosen) { focused.classList.add("chosen"); } if (focus) focused.focus({ preventScroll: true }); }
    return focused;
  };
  const draw = () => { placed = new Placed(picture.block, picture, name, state); return paint(); };
  view.addEventListener("scroll", () => {
    const now = seen(0);
    if (holder.isConnected && (now.left < drawn.left || now.right > drawn.right || now.top < drawn.top || now.bottom > drawn.bottom)) paint();
  });
  const choose = (group, toggle) => {
    const { here, element, box, inner } = group.place;
    chosen = here;
    if (toggle) {
      if (typeof element === "object") state.closed.has(here) ? state.closed.delete(here) : state.closed.add(here);
      else if (data.definitions[box.key]) inner ? state.open.delete(here) : state.open.add(here);
    }
    if (box) show(box);
    const shown = toggle ? draw() : paint();
    shown?.focus({ preventScroll: true });
    if (!toggle) shown?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  holder.addEventListener("click", event => { const group = event.target.closest("g.box"); if (group) choose(group, true); });
  holder.addEventListener("keydown", event => {
    const groups = [...holder.querySelectorAll("g.box")], at = groups.indexOf(event.target.closest("g.box"));
    const move = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (move && at + move >= 0 && at + move < groups.length) { choose(groups[at + move], false); event.preventDefault(); }
    if ((event.key === "Enter" || event.key === " ") && at >= 0) { choose(groups[at], true); event.preventDefault(); }
  });
  const colour = el("button", { onclick: () => {
    state.byTime = !state.byTime;
    state.colour = state.byTime ? box => box.leaf ? "#ffffff" : heat((box.share || 0) / most) : box => box.fill;
    colour.textContent = state.byTime ? "colour by kind" : "colour by time";
    draw();
  } }, "colour by time");
  const find = el("input", { type: "search", placeholder: "find a box", "aria-label": "find a box", oninput: () => {
    state.words = find.value.toLowerCase();
    const first = state.words && placed.first(state.words, 0, 0);
    find.setAttribute("aria-invalid", state.words !== "" && !first);
    find.title = state.words !== "" && !first ? "no box has this in its name" : "";
    if (first) view.scrollTo(first.x + holder.offsetLeft - view.offsetLeft - view.clientWidth / 2, first.y + holder.offsetTop - view.offsetTop - view.clientHeight / 2);
    paint();
  } });
  const legend = el("span", {}, ...picture.legend.map(([text, fill, stroke]) => el("span", { class: "key" }, fill === stroke ? null : el("span", { class: "swatch", style: `background:${fill};border-color:${stroke}` }), text)));
  const timed = Object.values(picture.boxes).some(box => box.share !== null);
  draw();
  return [el("div", { class: "controls" }, timed ? colour : null, find, legend), holder];
}

function show(box) {
  const step = data.steps[box.key];
  details.replaceChildren(el("h2", {}, box.lines[0]), el("dl", {}, ...box.lines.slice(1).flatMap(line => [el("dt", {}, ""), el("dd", {}, line)])), ...(step ? reasons(step) : []));
}
function reasons(step) {
  const list = pairs => el("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const source = step.measured ? `measured${step.spread === null ? "" : ` ± ${percent(step.spread)}`}${step.rows > 1 ? ` (${step.rows_agreeing} of ${step.rows} rows agree)` : ""}` : "an estimate";
  const next = step.others[0], near = step.measured && next && step.spread !== null && next.us_per_call < step.us_per_call * (1 + step.spread);
  const why = /^trace \d+$/.test(step.why || "") ? "it has the lowest time of the kernels that agree with the oracle" : step.why;
  return [
    list([["kernel", step.kernel], ["computes", step.text], ["steps in it", step.steps], ["calls", step.calls], ["a call", `${micros(step.us_per_call)}, ${source}`],
      ["all calls", micros(step.us_per_call * step.calls)], ["error", step.error === null ? "not compared" : number(step.error)], ["why", why]]),
    near ? el("p", { class: "warn" }, next.measured ? `Its spread reaches the next best, ${way(next.kernel)}: tg profile measures both again.` : `The next best, ${way(next.kernel)}, may be as fast: its time is an estimate, which the choice doubles where others are measured. tg profile measures it.`) : null,
    step.trace !== null && data.live ? el("p", {}, el("button", { onclick: () => showTrace({ trace: step.trace }) }, `samples of row ${step.trace}`)) : null,
    step.suspect ? el("p", { class: "warn" }, "suspect: " + step.suspect) : null,
    step.others.length ? el("h2", {}, "what came next") : null,
    step.others.length ? el("table", {}, el("tbody", {}, ...step.others.map(other => el("tr", {}, el("td", { class: "text" }, way(other.kernel)), el("td", {}, micros(other.us_per_call)), el("td", {}, other.measured ? "" : "estimate"))))) : null,
    step.refused.length ? el("h2", {}, "refused") : null,
    step.refused.length ? el("dl", {}, ...step.refused.flatMap(one => [el("dt", {}, one.kernel), el("dd", {}, one.why)])) : null,
    step.derivation.length ? el("h2", {}, "derivation") : null,
    step.derivation.length ? el("ol", {}, ...step.derivation.map(line => el("li", {}, line))) : null,
  ].filter(Boolean);
}

// ---- tables ----

function table(caption, columns, rows, pick) {
  // columns: [name, value of a row, what is shown of it, whether it is text, whether it is coloured]. A click on a name sorts.
  let sorted = null, down = true;
  const body = el("tbody");
  const fill = () => {
    const order = sorted === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [a, b].map(columns[sorted][1]), way = x === y ? 0 : (x ?? -1) < (y ?? -1) ? -1 : 1;
      return down ? -way : way;
    });
    body.replaceChildren(...order.map(row => {
      const line = el("tr", pick ? { tabindex: 0, onclick: () => pick(row), onkeydown: event => {
        const to = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling }[event.key];
        if (event.key === "Enter") pick(row);
        if (to) { to.focus(); event.preventDefault(); }
      } } : {},
        ...columns.map(([, value, shown, text, marked]) => el("td", { class: [text && "text", marked?.(row) && "differs"].filter(Boolean).join(" ") || null }, shown ? shown(row) : value(row))));
      return line;
    }));
  };
  const head = el("tr", {}, ...columns.map(([name, , , text], k) => el("th", { scope: "col", class: text ? "text" : null }, el("button", { onclick: () => { down = sorted === k ? !down : true; sorted = k; fill(); } }, name))));
  fill();
  return el("table", {}, el("caption", {}, caption), el("thead", {}, head), body);
}

const percent = share => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
function compared(ratio) { return Math.abs(ratio - 1) < 0.01 ? "the same time as this plan" : `${number(ratio)} of this plan's time`; }

function stepsView() {
  const rows = Object.values(data.steps).map(step => ({ ...step, all: step.us_per_call * step.calls })).sort((a, b) => b.all - a.all);
  const total = rows.reduce((sum, row) => sum + row.all, 0) || 1;
  const bar = row => el("span", { class: "bar" + (row.measured ? "" : " estimate"), style: `width:${Math.max(1, 160 * row.all / total)}px` });
  const looser = data.looser && el("p", {}, `With ten times the error (${data.looser.asked}) a run takes ${micros(data.looser.us)}, ${compared(data.looser.us / data.us)}${data.looser.precision ? `: ${data.looser.precision}` : ""}. `,
    differences(data.looser.ways).length ? el("button", { onclick: () => details.replaceChildren(el("h2", {}, data.looser.asked), ...differing(data.looser.ways)) }, "what is different") : "It runs the same kernels.");
  return [...(looser ? [looser] : []), table("Kinds of steps, the dearest first. Pale bars are estimates; spread: half the distance of the quartiles of its samples; error: the largest relative one against float64. A row shows why its kernel was chosen.", [
    ["step", stepName, null, true], ["kernel", row => row.kernel, null, true], ["calls", row => row.calls], ["a call", row => row.us_per_call, row => micros(row.us_per_call)],
    ["spread", row => row.spread, row => row.spread === null ? "–" : percent(row.spread)],
    ["of a run", row => row.all, row => el("span", {}, bar(row), ` ${(100 * row.all / total).toFixed(1)} %`)], ["error", row => row.error, row => row.error === null ? "–" : number(row.error)],
    ["next best", row => row.others.length ? row.others[0].us_per_call / row.us_per_call : null, row => row.others.length ? `${way(row.others[0].kernel)} × ${number(row.others[0].us_per_call / row.us_per_call)}` : "–", true],
    ["", row => row.suspect ? 1 : 0, row => row.suspect ? el("span", { class: "warn", title: row.suspect }, "suspect") : ""],
  ], rows, row => details.replaceChildren(el("h2", {}, stepName(row)), ...reasons(row)))];
}

function pathsView() {
  const paths = data.paths;
  if (!paths.length) return [el("p", {}, "No other path was listed.")];
  const parts = [...new Set(paths.flatMap(path => Object.keys(path.ways)))];
  const rows = parts.map(part => ({ part, ways: paths.map(path => path.ways[part] ?? "") })).map(row => ({ ...row, differs: new Set(row.ways).size > 1 }));
  rows.sort((a, b) => Number(b.differs) - Number(a.differs));
  const first = paths[0].us;
  return [
    table("Paths, the cheapest first.", [["path", path => path.id, null, true], ["a run", path => path.us, path => micros(path.us)], ["÷ the first", path => path.us / first, path => number(path.us / first)],
      ["error", path => path.error, path => path.error === null ? "not compared" : number(path.error)], ["", path => path.measured ? 1 : 0, path => path.measured ? "measured" : "estimate"]], paths),
    el("h2", {}, "Their ways, part by part"),
    table("Parts in which they differ come first; what differs from the first path is coloured. – : the part does not occur.", [["part", row => row.part, null, true],
      ...paths.map((path, k) => [path.id.slice(0, 8), row => row.ways[k], row => way(row.ways[k]) || "–", true, row => row.ways[k] !== row.ways[0]])], rows),
  ];
}

// ---- memory, a run, the front ----

function chart(width, height, label) { return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }); }
const HUES = ["#4f86c6", "#d98b3f", "#6aa86a", "#c46a8a", "#8d78c9", "#b8a53c", "#4ba6a0", "#9a8468"];

function memoryView() {
  const { use, arenas, steps, buffers } = data.memory, out = [];
  out.push(el("dl", {}, ...each(use, (name, n) => n ? [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, bytes(n))] : []).flat()));
  for (const [device, size] of Object.entries(arenas)) {
    const own = buffers.filter(buffer => buffer[5] === device), width = 900, height = 360, last = Math.max(1, steps.length);
    const change = new Array(steps.length + 1).fill(0), alive = [];
    for (const [from, to, , n] of own) { change[from] += n; change[to + 1] -= n; }
    steps.reduce((sum, _, t) => alive[t] = sum + change[t], 0);
    const peak = alive.indexOf(alive.reduce((a, b) => Math.max(a, b), 0));
    const root = chart(width, height + 24, `arena of ${device} over the steps of a run`);
    own.forEach(([from, to, at, n, name], k) => {
      const x = width * from / last, w = Math.max(1, width * (to + 1 - from) / last), h = Math.max(0.5, height * n / size);
      const rect = svg("rect", { x, y: height - height * at / size - h, width: w, height: h, fill: HUES[k % HUES.length], "fill-opacity": from <= peak && peak <= to ? 0.95 : 0.45 });
      rect.append(svg("title", {}, `${name}: ${bytes(n)} at ${bytes(at)}, steps ${from} to ${to}`));
      root.append(rect);
    });
    root.append(svg("line", { x1: width * (peak + 0.5) / last, x2: width * (peak + 0.5) / last, y1: 0, y2: height, stroke: "var(--hot)" }));
    root.append(svg("text", { class: "axis", x: 0, y: height + 16 }, `step 0 to ${last - 1} · most is alive at step ${peak}, ${steps[peak] ?? ""}: ${bytes(alive[peak] ?? 0)} of an arena of ${bytes(size)}`));
    out.push(el("h2", {}, `Arena of ${device}`), root);
    const rows = own.filter(([from, to]) => from <= peak && peak <= to).sort((a, b) => b[3] - a[3]);
    out.push(table("Alive at that step", [["value", row => row[4], null, true], ["bytes", row => row[3], row => bytes(row[3])], ["from step", row => row[0]], ["to step", row => row[1]]], rows));
  }
  return out;
}

function runView() {
  const events = data.run.traceEvents.filter(event => event.ph === "X"), end = Math.max(...events.map(event => event.ts + event.dur));
  const lanes = data.run.traceEvents.filter(event => event.name === "thread_name"), width = 1100, row = 34;
  const root = chart(width + 90, row * lanes.length + 30, "a run, step by step");
  lanes.forEach((lane, k) => root.append(svg("text", { class: "axis", x: 0, y: row * k + 21 }, lane.args.name)));
  const kinds = [...new Set(events.map(event => event.cat))];
  for (const event of events) {
    const rect = svg("rect", { x: 80 + width * event.ts / end, y: row * event.tid + 4, width: Math.max(0.7, width * event.dur / end), height: row - 8, fill: HUES[kinds.indexOf(event.cat) % HUES.length] });
    rect.append(svg("title", {}, `${event.name}: ${micros(event.dur)}${event.args.predicted_us ? `, predicted ${micros(event.args.predicted_us)}` : ""}`));
    root.append(rect);
  }
  root.append(svg("text", { class: "axis", x: 80, y: row * lanes.length + 18 }, `0 to ${micros(end)}, with a stop after each step to look at the clock; another run in one go took ${micros(data.run.otherData.one_go_us)}`));
  const legend = el("p", {}, ...kinds.map((kind, k) => el("span", { class: "key" }, el("span", { class: "swatch", style: `background:${HUES[k % HUES.length]}` }), kind)));
  const steps = events.filter(event => event.cat !== "run").sort((a, b) => b.dur - a.dur);
  return [legend, root, table("Steps of this run, the longest first. At the roof: the least time by the measured rates; a step whose operands lie in caches may be faster.", [["step", row => row.name, null, true], ["kernel", row => row.args.kernel, null, true], ["took", row => row.dur, row => micros(row.dur)],
    ["predicted", row => row.args.predicted_us ?? null, row => micros(row.args.predicted_us)], ["at the roof", row => row.args.least_us ?? null, row => micros(row.args.least_us)]], steps)];
}

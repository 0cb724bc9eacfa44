// The timeline: lanes over one axis of time. What falls on the same few pixels is one mark, so that
// thousands of incidents are as fast as ten.

const timeline = { from: 0, to: 1, width: 0, lanes: [], height: 0 };
const MARKS = 34, TITLE = 20, SIZES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];

const left = () => (onPhone() ? 44 : 60);
const right = () => timeline.width - (onPhone() ? 40 : 60);
const whole = () => Math.max(data.length, 1);
const seesAll = () => timeline.from <= 0 && timeline.to >= whole();
const place = (ms) => left() + ((ms - timeline.from) / (timeline.to - timeline.from)) * (right() - left());
const momentAt = (x) => timeline.from + ((x - left()) / (right() - left())) * (timeline.to - timeline.from);
const seen = ([a, b]) => b >= timeline.from && a <= timeline.to;

function drawTimeline() {
  const box = byId("timeline");
  timeline.width = Math.max(box.clientWidth, 260);
  const lanes = [speedLane(130), data.steps ? stepLane(100) : null].filter(Boolean);
  let y = TITLE;
  for (const lane of lanes) {
    [lane.top, lane.base] = [y, y + lane.high];
    y = lane.base + TITLE + 6;
  }
  const marksAt = y - TITLE + 2, bottom = marksAt + MARKS;
  Object.assign(timeline, { lanes, marksAt, bottom, height: bottom + 38 });
  const root = svg("svg", { viewBox: `0 0 ${timeline.width} ${timeline.height}`, height: timeline.height, role: "img", "aria-label": "Goodput, steps a minute, step time and incidents over time" });
  const clip = svg("clipPath", { id: "inside" }, svg("rect", { x: left(), y: 0, width: right() - left(), height: timeline.height }));
  const inside = svg("g", { "clip-path": "url(#inside)" });
  inside.append(...spans(), ...lanes.flatMap((lane) => lane.draw(lane)), ...starts(), ...marks());
  root.append(svg("defs", {}, clip), ...timeAxis(), ...lanes.flatMap(laneAxes), inside);
  if (total) root.append(svg("text", { x: left() - 6, y: marksAt + MARKS / 2 + 4, "text-anchor": "end" }, onPhone() ? "" : "incidents"));
  if (list.selected >= 0) root.append(cursor());
  root.append(svg("line", { id: "cross", class: "cross", y1: TITLE, y2: bottom, x1: -9, x2: -9 }));
  box.replaceChildren(root, el("div", { id: "readout", hidden: "" }));
  byId("zoom-all").disabled = seesAll();
}

// -- lanes: what has the same axis -----------------------------------------------------------------

function speedLane(high) {
  const most = Math.max(...data.rates.filter(seen).map(([, , rate]) => rate), 1e-9);
  const step = round(most / 4), top = Math.ceil((most * 1.02) / step) * step;
  const marked = (n) => (n * step).toLocaleString("en-US", { maximumFractionDigits: 3 });
  const ticks = data.rates.length ? [...Array(Math.round(top / step) + 1).keys()].map((n) => [(n * step) / top, marked(n)]) : [];
  return {
    high, name: "goodput, %", other: data.rates.length ? "steps/min" : "", left: [0, 0.25, 0.5, 0.75, 1].map((part) => [part, `${part * 100}%`]), right: ticks,
    draw: (lane) => [goodput(lane), line("rate", data.rates.map(([a, b, rate]) => [a, b, rate / top]), lane)],
  };
}

function stepLane(high) {
  const shown = data.steps.over.filter(seen);
  const most = Math.max(...shown.map(([, , , p99]) => p99), 1e-3);
  const step = round(most / 3), top = Math.ceil((most * 1.02) / step) * step;
  return {
    high, name: "step time", other: "", right: [],
    left: [...Array(Math.round(top / step) + 1).keys()].map((n) => [(n * step) / top, n ? span(n * step) : "0"]),
    draw: (lane) => [
      line("p99", data.steps.over.map(([a, b, , p99]) => [a, b, p99 / top]), lane),
      line("rate", data.steps.over.map(([a, b, median]) => [a, b, median / top]), lane),
    ],
  };
}

function laneAxes(lane) {
  const found = [svg("text", { class: "lane", x: left(), y: lane.top - 7 }, lane.name)];
  if (lane.other) found.push(svg("text", { class: "lane", x: right(), y: lane.top - 7, "text-anchor": "end" }, lane.other));
  for (const [part, label] of lane.left) {
    const y = lane.base - part * lane.high;
    found.push(svg("line", { class: "axis", x1: left(), x2: right(), y1: y, y2: y }), svg("text", { x: left() - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  for (const [part, label] of lane.right) found.push(svg("text", { class: "of-rate", x: right() + 6, y: lane.base - part * lane.high + 4 }, label));
  return found;
}

function goodput({ base, high }) {
  const width = data.length / Math.max(data.bins.length, 1);
  let path = "", open = false;
  data.bins.forEach((good, n) => {
    const a = n * width, b = a + width;
    if (good === null || !seen([a, b])) {
      if (open) path += `V${base}Z`;
      open = false;
      return;
    }
    if (!open) path += `M${place(a).toFixed(1)},${base}`;
    path += `V${(base - good * high).toFixed(1)}H${place(b).toFixed(1)}`;
    open = true;
  });
  return svg("path", { class: "good", d: open ? `${path}V${base}Z` : path });
}

// Steps of a value between two moments: [from, to, its part of the lane].
function line(css, pieces, { base, high }) {
  let path = "", before = null;
  for (const [a, b, part] of pieces) {
    if (!seen([a, b])) continue;
    const y = (base - part * high).toFixed(1);
    path += before === a ? `V${y}` : `M${place(a).toFixed(1)},${y}`;
    path += `H${place(b).toFixed(1)}`;
    before = b;
  }
  return svg("path", { class: css, d: path });
}

// -- what is over all lanes ------------------------------------------------------------------------

function spans() {
  const band = (css, a, b, words) => svg("rect", { class: css, x: place(a), y: TITLE, width: Math.max(place(b) - place(a), 1), height: timeline.bottom - TITLE }, title(words));
  return [
    ...data.shrunk.map((one) => band("shrunk", one.at, one.at + one.took, `${clock(one.at)} ${trains(one)}`)),
    ...data.paused.map(([a, b]) => band("pause", a, b, "paused")),
    ...incidents.filter((one) => place(one.at + one.lost) - place(one.at) > 2).map((one) => band("cost", one.at, one.at + one.lost, "lost to an incident")),
  ];
}

function starts() {
  return data.protected.map((at) => {
    const x = place(at);
    return svg("line", { class: "protected", x1: x, x2: x, y1: TITLE, y2: timeline.bottom }, title(`${clock(at)} all ranks are protected`));
  });
}

function marks() {
  const places = new Map();
  for (let n = 0; n < total; n += 1) {
    const at = incidents[n].at;
    if (!seen([at, at])) continue;
    const key = Math.round(place(at) / 6);
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(n);
  }
  return [...places.values()].map((found) => {
    const worst = found.reduce((a, b) => (rankOf(a) <= rankOf(b) ? a : b)), x = place(incidents[worst].at);
    const size = Math.min(5 + Math.log2(found.length), 9);
    const words = found.length > 1 ? `${found.length} incidents, the first at ${clock(incidents[found[0]].at)}` : `${clock(incidents[worst].at)} ${causeOf(worst)}`;
    return svg("g", { class: "mark", onclick: () => open(worst) },
      svg("line", { class: `drop ${stateOf(worst).css}`, x1: x, x2: x, y1: TITLE, y2: timeline.marksAt + MARKS / 2 }),
      shape(stateOf(worst), x, timeline.marksAt + MARKS / 2, size), title(words));
  });
}

const rankOf = (n) => WORST.indexOf(incidents[n].result);

function cursor() {
  const x = place(incidents[list.selected].at);
  if (x < left() || x > right()) return svg("g");
  return svg("rect", { class: "cursor", x: x - 9, y: timeline.marksAt + 3, width: 18, height: MARKS - 6, rx: 4 });
}

function timeAxis() {
  const found = [svg("line", { class: "axis", x1: left(), x2: right(), y1: timeline.bottom, y2: timeline.bottom })];
  const wanted = (timeline.to - timeline.from) / Math.max((right() - left()) / 100, 2) / 1000;
  const step = (SIZES.find((size) => size >= wanted) || SIZES[SIZES.length - 1]) * 1000;
  for (let at = Math.ceil((data.zero + timeline.from) / step) * step - data.zero; at <= timeline.to; at += step) {
    const x = place(at), label = step >= 21600000 ? `${day(at)} ${clock(at).slice(0, 5)}` : step < 60000 ? clock(at) : clock(at).slice(0, 5);
    found.push(svg("line", { class: "axis", x1: x, x2: x, y1: TITLE, y2: timeline.bottom + 4 }));
    if (x > left() + 20 && x < right() - 20) found.push(svg("text", { x, y: timeline.bottom + 16, "text-anchor": "middle" }, label));
  }
  const end = onPhone() && day(timeline.from) === day(timeline.to) ? `${clock(timeline.to)} UTC` : `${day(timeline.to)} ${clock(timeline.to)} UTC`;
  found.push(svg("text", { x: left(), y: timeline.bottom + 33 }, `${day(timeline.from)} ${clock(timeline.from)}`));
  if (!onPhone()) found.push(svg("text", { x: (left() + right()) / 2, y: timeline.bottom + 33, "text-anchor": "middle" }, `${span(timeline.to - timeline.from)}${seesAll() ? "" : " of " + span(whole())}`));
  found.push(svg("text", { x: right(), y: timeline.bottom + 33, "text-anchor": "end" }, end));
  return found;
}

// -- zoom ------------------------------------------------------------------------------------------

function zoom(factor) {
  const at = list.selected >= 0 ? incidents[list.selected].at : (timeline.from + timeline.to) / 2;
  const width = Math.min(Math.max((timeline.to - timeline.from) * factor, 1000), whole());
  const from = Math.min(Math.max(at - width / 2, 0), whole() - width);
  show(from, from + width);
}

const showAll = () => show(0, whole());

function show(from, to) {
  [timeline.from, timeline.to] = [from, Math.max(to, from + 1)];
  drawTimeline();
}

// Drag over a part of it to see that part; point at it to read its values.
function brushing() {
  const box = byId("timeline");
  let began = null, brush = null;
  const x = (event) => Math.min(Math.max(event.clientX - box.getBoundingClientRect().left, left()), right());
  box.addEventListener("pointerdown", (event) => { if (event.button === 0) began = x(event); });
  box.addEventListener("dblclick", showAll);
  box.addEventListener("pointerleave", hideReadout);
  window.addEventListener("pointermove", (event) => {
    if (began === null) {
      if (box.contains(event.target)) readout(x(event));
      return;
    }
    hideReadout();
    if (!brush) brush = box.firstChild.appendChild(svg("rect", { class: "brush", y: TITLE, height: timeline.bottom - TITLE }));
    brush.setAttribute("x", Math.min(began, x(event)));
    brush.setAttribute("width", Math.abs(x(event) - began));
  });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, (event) => {
    if (began === null) return;
    const [a, b] = [began, x(event)].sort((p, q) => p - q);
    if (brush) brush.remove();
    if (b - a > 8 && name === "pointerup") show(momentAt(a), momentAt(b));
    began = brush = null;
  });
}

function readout(x) {
  const at = momentAt(x), box = byId("readout"), inside = ([a, b]) => a <= at && at < b;
  const good = data.bins[Math.floor((at / Math.max(data.length, 1)) * data.bins.length)];
  const rate = data.rates.find(inside), steps = data.steps && data.steps.over.find(inside);
  const near = incidents.findIndex((one) => Math.abs(place(one.at) - x) < 6 || (one.at <= at && at < one.at + one.lost));
  const said = [
    ["", `${day(at)} ${clock(at, timeline.to - timeline.from < 60000)}`],
    ...(good === null || good === undefined ? [] : [["goodput", `${(good * 100).toFixed(1)} %`]]),
    ...(rate ? [["steps/min", rate[2].toLocaleString("en-US", { maximumFractionDigits: 1 })]] : []),
    ...(steps ? [["median step", span(steps[2])], ["99 %", span(steps[3])]] : []),
    ...(near >= 0 ? [[`incident ${near + 1}`, causeOf(near)]] : []),
  ];
  box.replaceChildren(...said.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, value))));
  box.hidden = false;
  box.style.left = `${x > timeline.width / 2 ? x - box.offsetWidth - 12 : x + 12}px`;
  for (const end of ["x1", "x2"]) byId("cross").setAttribute(end, x);
}

function hideReadout() {
  byId("readout").hidden = true;
  for (const end of ["x1", "x2"]) byId("cross").setAttribute(end, -9);
}

function timelineLegend() {
  const stroke = (css) => svg("svg", { width: 14, height: 12 }, svg("line", { class: css, x1: 0, x2: 14, y1: 6, y2: 6 }));
  const found = [el("span", {}, swatch("good"), "goodput"), el("span", {}, stroke("rate"), data.steps ? "steps a minute, median step" : "steps a minute")];
  if (data.steps) found.push(el("span", {}, stroke("p99"), "99 % of steps"));
  const results = new Set(incidents.map(({ result }) => result));
  for (const [name, state] of Object.entries(STATES)) if (results.has(name)) found.push(el("span", {}, sign(state), name));
  if (data.shrunk.length) found.push(el("span", {}, swatch("shrunk"), "ranks were away"));
  if (data.paused.length) found.push(el("span", {}, swatch("pause"), "paused"));
  byId("timeline-legend").replaceChildren(...found);
}

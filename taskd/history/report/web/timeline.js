// The timeline: goodput as an area, new steps a minute as a line, incidents as marks. What falls on
// the same few pixels is one mark, so that thousands of incidents are as fast as ten.

const timeline = { from: 0, to: Math.max(data.length, 1), width: 0 };
const LEFT = 64, RIGHT = 12, TOP = 14, GOOD = 74, MARKS = 30, HEIGHT = 168;

const place = (ms) => LEFT + ((ms - timeline.from) / (timeline.to - timeline.from)) * (timeline.width - LEFT - RIGHT);
const momentAt = (x) => timeline.from + ((x - LEFT) / (timeline.width - LEFT - RIGHT)) * (timeline.to - timeline.from);

function drawTimeline() {
  const box = byId("timeline");
  timeline.width = Math.max(box.clientWidth, 300);
  const root = svg("svg", {
    viewBox: `0 0 ${timeline.width} ${HEIGHT}`, height: HEIGHT, role: "img",
    "aria-label": "Goodput, steps per minute and incidents over time",
  });
  const clip = svg("clipPath", { id: "inside" }, svg("rect", { x: LEFT, y: 0, width: timeline.width - LEFT - RIGHT, height: HEIGHT }));
  const inside = svg("g", { "clip-path": "url(#inside)" });
  inside.append(...spans(), goodput(), steps(), ...starts(), ...marks());
  root.append(svg("defs", {}, clip), ...axes(), inside);
  if (list.selected >= 0) root.append(cursor());
  box.replaceChildren(root);
}

function spans() {
  const band = (css, a, b, words) => svg("rect", { class: css, x: place(a), y: TOP, width: Math.max(place(b) - place(a), 1), height: GOOD + MARKS }, title(words));
  return [
    ...data.shrunk.map((one) => band("shrunk", one.at, one.at + one.took, `${clock(one.at)} ${trains(one)}`)),
    ...data.paused.map(([a, b]) => band("pause", a, b, "paused")),
  ];
}

function goodput() {
  const width = data.length / Math.max(data.bins.length, 1), base = TOP + GOOD;
  let path = "", open = false;
  data.bins.forEach((good, n) => {
    const a = n * width, b = a + width;
    if (good === null || b < timeline.from || a > timeline.to) {
      if (open) path += `V${base}Z`;
      open = false;
      return;
    }
    if (!open) path += `M${place(a).toFixed(1)},${base}`;
    path += `V${(base - good * GOOD).toFixed(1)}H${place(b).toFixed(1)}`;
    open = true;
  });
  return svg("path", { class: "good", d: open ? `${path}V${base}Z` : path });
}

const highest = Math.max(...data.rates.map(([, , rate]) => rate), 1e-9) * 1.05;

function steps() {
  const base = TOP + GOOD;
  let path = "", before = null;
  for (const [a, b, rate] of data.rates) {
    if (b < timeline.from || a > timeline.to) continue;
    const y = (base - (rate / highest) * GOOD).toFixed(1);
    path += before === a ? `V${y}` : `M${place(a).toFixed(1)},${y}`;
    path += `H${place(b).toFixed(1)}`;
    before = b;
  }
  return svg("path", { class: "rate", d: path });
}

function starts() {
  return data.protected.map((at) => {
    const x = place(at);
    return svg("line", { class: "protected", x1: x, x2: x, y1: TOP, y2: TOP + GOOD + MARKS }, title(`${clock(at)} all ranks are protected`));
  });
}

function marks() {
  const places = new Map();
  for (let n = 0; n < total; n += 1) {
    const at = incidents[n].at;
    if (at < timeline.from || at > timeline.to) continue;
    const key = Math.round(place(at) / 6);
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(n);
  }
  return [...places.values()].map((found) => {
    const worst = found.reduce((a, b) => (rankOf(a) <= rankOf(b) ? a : b));
    const size = Math.min(4 + Math.log2(found.length), 8);
    const words = found.length > 1 ? `${found.length} incidents, the first at ${clock(incidents[found[0]].at)}` : `${clock(incidents[worst].at)} ${causeOf(worst)}`;
    return svg("g", { class: "mark", onclick: () => open(worst) }, shape(stateOf(worst), place(incidents[worst].at), TOP + GOOD + MARKS / 2, size), title(words));
  });
}

const rankOf = (n) => WORST.indexOf(incidents[n].result);

function cursor() {
  const x = place(incidents[list.selected].at);
  if (x < LEFT || x > timeline.width - RIGHT) return svg("g");
  return svg("rect", { class: "cursor", x: x - 7, y: TOP + GOOD + 4, width: 14, height: MARKS - 8, rx: 3 });
}

function axes() {
  const base = TOP + GOOD, right = timeline.width - RIGHT, found = [];
  for (const [y, label] of [[TOP, "100%"], [TOP + GOOD / 2, "50%"], [base, "0%"]]) {
    found.push(svg("line", { class: "axis", x1: LEFT, x2: right, y1: y, y2: y }));
    found.push(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  if (data.rates.length) found.push(svg("text", { x: LEFT, y: TOP - 4 }, `up to ${Math.round(highest / 1.05).toLocaleString("en-US")} steps/min`));
  found.push(svg("text", { x: LEFT - 6, y: base + MARKS / 2 + 4, "text-anchor": "end" }, total ? "incidents" : ""));
  found.push(svg("line", { class: "axis", x1: LEFT, x2: right, y1: base + MARKS, y2: base + MARKS }));
  const sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000].map((s) => s * 1000);
  const wanted = (timeline.to - timeline.from) / Math.max((timeline.width - LEFT) / 110, 2);
  const step = sizes.find((size) => size >= wanted) || sizes[sizes.length - 1];
  for (let at = Math.ceil((data.zero + timeline.from) / step) * step - data.zero; at <= timeline.to; at += step) {
    const x = place(at);
    found.push(svg("line", { class: "axis", x1: x, x2: x, y1: base + MARKS, y2: base + MARKS + 4 }));
    const label = step >= 21600000 ? `${day(at)} ${clock(at).slice(0, 5)}` : step < 60000 ? clock(at) : clock(at).slice(0, 5);
    found.push(svg("text", { x, y: base + MARKS + 17, "text-anchor": "middle" }, label));
  }
  found.push(svg("text", { x: LEFT, y: base + MARKS + 34 }, `${day(timeline.from)} ${clock(timeline.from)} UTC`));
  found.push(svg("text", { x: right, y: base + MARKS + 34, "text-anchor": "end" }, `${day(timeline.to)} ${clock(timeline.to)} UTC`));
  return found;
}

function zoom(factor, middle = null) {
  const whole = Math.max(data.length, 1);
  const at = middle ?? (list.selected >= 0 ? incidents[list.selected].at : (timeline.from + timeline.to) / 2);
  const width = Math.min(Math.max((timeline.to - timeline.from) * factor, 1000), whole);
  const from = Math.min(Math.max(at - width / 2, 0), whole - width);
  show(from, from + width);
}

function show(from, to) {
  [timeline.from, timeline.to] = [from, Math.max(to, from + 1)];
  drawTimeline();
}

// Drag over a part of it to see that part.
function brushing() {
  const box = byId("timeline");
  let began = null, brush = null;
  const x = (event) => Math.min(Math.max(event.clientX - box.getBoundingClientRect().left, LEFT), timeline.width - RIGHT);
  box.addEventListener("pointerdown", (event) => { began = x(event); });
  window.addEventListener("pointermove", (event) => {
    if (began === null) return;
    brush = brush || box.firstChild.appendChild(svg("rect", { class: "brush", y: TOP, height: GOOD + MARKS }));
    brush.setAttribute("x", Math.min(began, x(event)));
    brush.setAttribute("width", Math.abs(x(event) - began));
  });
  window.addEventListener("pointerup", (event) => {
    if (began === null) return;
    const [a, b] = [began, x(event)].sort((p, q) => p - q);
    if (b - a > 8) show(momentAt(a), momentAt(b));
    else if (brush) brush.remove();
    began = brush = null;
  });
}

function timelineLegend() {
  const entries = [["good", "goodput"], ["accent", "steps per minute"]];
  const found = entries.map(([css, name]) => el("span", {}, css === "good" ? swatch(css) : svg("svg", { width: 14, height: 12 }, svg("line", { class: "rate", x1: 0, x2: 14, y1: 6, y2: 6 })), name));
  const seen = new Set(incidents.map(({ result }) => result));
  for (const [name, state] of Object.entries(STATES)) if (seen.has(name)) found.push(el("span", {}, sign(state), name));
  if (data.shrunk.length) found.push(el("span", {}, swatch("shrunk"), "ranks were away"));
  if (data.paused.length) found.push(el("span", {}, swatch("pause"), "paused"));
  byId("timeline-legend").append(...found);
}

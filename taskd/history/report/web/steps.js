// How long steps take, and what the job runs on and with.

const HISTOGRAM = 190;

function drawSteps() {
  byId("steps").replaceChildren(...[histogram(), environment()].filter(Boolean));
}

// The durations are counted eight for each power of two: bars on a logarithmic axis.
function histogram() {
  const steps = data.steps;
  if (!steps) return null;
  const box = el("section", { class: "card" }, el("h2", {}, "Step time"), el("p", { class: "quiet" }, `${count(steps.attempts, "attempt")} of the nodes' first ranks, the repeated ones as well; those of about the same duration are counted together.`));
  const width = Math.max(Math.min(byId("steps").clientWidth, byId("steps").clientWidth > 760 ? byId("steps").clientWidth / 2 - 12 : Infinity) - 30, 240);
  const from = steps.counts[0][0] / 1.2, to = steps.counts[steps.counts.length - 1][0] * 1.2;
  const x = (ms) => 40 + (Math.log(ms / from) / Math.log(to / from)) * (width - 52);
  const most = Math.max(...steps.counts.map(([, n]) => n)) / steps.attempts, step = round((most * 100) / 4), top = Math.ceil((most * 100) / step) * step;
  const base = HISTOGRAM - 34, high = base - 22, y = (share) => base - (share / top) * high;
  const root = svg("svg", { viewBox: `0 0 ${width} ${HISTOGRAM}`, height: HISTOGRAM, width: "100%", role: "img", "aria-label": `Step time: median ${span(steps.median)}, 99 % up to ${span(steps.p99)}` });
  for (let share = 0; share <= top + 1e-9; share += step) {
    root.append(svg("line", { class: "axis", x1: 40, x2: width - 12, y1: y(share), y2: y(share) }), svg("text", { x: 34, y: y(share) + 4, "text-anchor": "end" }, `${Number(share.toFixed(2))}%`));
  }
  for (const [ms, n] of steps.counts) {
    const [a, b] = [x(ms / 1.055), x(ms * 1.055)], share = (n / steps.attempts) * 100, tall = Math.max(base - y(share), 1.5);
    root.append(svg("rect", { class: ms > steps.p99 ? "tail" : "bar", x: a, width: Math.max(b - a - 0.5, 1), y: base - tall, height: tall }, title(`about ${span(ms)}: ${count(n, "attempt")}, ${share.toFixed(share < 1 ? 2 : 1)} %`)));
  }
  let last = -99;
  for (const ms of decades(from, to)) {
    if (x(ms) - last < 46 || x(ms) > width - 24) continue;
    last = x(ms);
    root.append(svg("line", { class: "axis", x1: last, x2: last, y1: base, y2: base + 4 }), svg("text", { x: last, y: base + 16, "text-anchor": "middle" }, span(ms)));
  }
  const near = x(steps.p99) - x(steps.median) < 120;
  for (const [name, ms, anchor] of [["median", steps.median, near ? "end" : "start"], ["99 %", steps.p99, "start"]]) {
    const late = x(ms) > width - 90;
    root.append(svg("line", { class: "limit", x1: x(ms), x2: x(ms), y1: 14, y2: base }), svg("text", { class: "name", x: x(ms) + (late || anchor === "end" ? -4 : 4), y: name === "median" ? 22 : 36, "text-anchor": late ? "end" : anchor }, `${name} ${span(ms)}`));
  }
  root.append(svg("text", { class: "lane", x: 40, y: 10 }, "share of attempts"), svg("text", { class: "lane", x: width - 12, y: HISTOGRAM - 2, "text-anchor": "end" }, "time of an attempt, logarithmic"));
  box.append(root);
  return box;
}

function decades(from, to) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(from)); power <= to; power *= 10) for (const m of [1, 1.5, 2, 3, 4, 5, 7]) if (m * power >= from && m * power <= to) found.push(m * power);
  return found;
}

// -- environment and settings ----------------------------------------------------------------------

const MACHINE = { host: "host", cpus: "CPUs", taskd: "taskd", torch: "torch", python: "Python", system: "system" };
const MACHINES = 20;

function environment() {
  const machines = data.machines, settings = Object.entries(data.settings);
  const differs = (name) => new Set(machines.map((one) => one[name])).size > 1;
  const common = Object.entries(MACHINE).filter(([name]) => machines.length && machines[0][name] && !differs(name));
  const own = Object.entries(MACHINE).filter(([name]) => differs(name));
  const rows = [
    ...(machines.length && machines[0].command ? [["command", machines[0].command]] : []),
    ...(data.ladder.length ? [["strategies", data.ladder.join(", ")]] : []),
    ...common.map(([name, shown]) => [shown, machines[0][name]]),
    ...settings,
  ];
  if (!rows.length && !own.length) return null;
  const listed = el("dl", { class: "pairs" }, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const each = own.length ? table(["node", ...own.map(([, shown]) => shown)], machines.slice(0, MACHINES).map((one) => [String(one.node), ...own.map(([name]) => one[name] || "–")])) : null;
  const more = machines.length > MACHINES ? el("p", { class: "quiet" }, `and ${count(machines.length - MACHINES, "more node")}: see taskd report --json`) : null;
  const software = own.filter(([name]) => ["taskd", "torch", "python"].includes(name)).map(([, shown]) => shown);
  const warning = software.length ? el("p", { class: "warning" }, `Not the same on all nodes: ${software.join(", ")}.`) : null;
  return el("section", { class: "card" }, el("h2", {}, "Environment and settings"), warning, listed, each, more, el("p", { class: "quiet" }, "Settings that are set. Secrets and the script's own arguments are in no journal."));
}

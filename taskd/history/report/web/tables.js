// Repairs by phase and strategy, what is to blame, slow ranks.

const COUNTED = 12; // rows of a table

function drawTables() {
  const found = [
    repairs(),
    counts("Causes", "cause", data.by_cause), counts("Nodes", "node", data.by_node),
    counts("Devices", "device", data.by_device), counts("Fault codes", "code", data.by_code),
    shrunken(), slowRanks(),
  ];
  byId("tables").replaceChildren(...found.filter(Boolean));
}

function card(name, css, ...content) {
  return el("section", { class: `card ${css}` }, el("h2", {}, name), ...content);
}

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "data" },
    el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell)))))));
}

// A column for each strategy; on a phone there is room for three beside each other.
function repairs() {
  if (!data.mttr) return null;
  const told = Object.entries(data.mttr_by_strategy);
  if (told.length !== 1) told.push(["all", data.mttr]);
  const most = Math.max(...told.map(([, times]) => times.mean), 1e-9);
  const phases = data.phases.filter((phase) => told.some(([, times]) => phase in times.phases));
  const wide = onPhone() ? 3 : told.length, tables = [];
  for (let n = 0; n < told.length; n += wide) tables.push(repairsTable(told.slice(n, n + wide), phases, most));
  return card("Time to repair (MTTR), mean by phase", "wide repairs", ...tables);
}

function repairsTable(told, phases, most) {
  const row = (name, said) => [name, ...told.map(([, times]) => said(times))];
  const rows = [
    row("repairs", (times) => times.repairs.toLocaleString("en-US")),
    row("", (times) => stack(phases, times.phases, most)),
    ...phases.map((phase) => row(el("span", { class: "phase" }, swatch(phase), phase), (times) => (phase in times.phases ? span(times.phases[phase] * 1000) : "–"))),
    ...[["mean", "mean"], ["median", "median"], ["95%", "p95"], ["most", "max"]].map(([name, of]) => row(name, (times) => span(times[of] * 1000))),
  ];
  return table(["", ...told.map(([name]) => name)], rows);
}

function stack(phases, spent, most) {
  const root = svg("svg", { class: "stack", height: 14, viewBox: "0 0 220 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const phase of phases.filter((p) => p in spent)) {
    const width = (spent[phase] / most) * 220;
    root.append(svg("rect", { class: phase, x: at, y: 1, width, height: 12 }, title(`${phase} ${span(spent[phase] * 1000)}`)));
    at += width;
  }
  return root;
}

function counts(name, what, told) {
  if (!told.length) return null;
  const most = told[0].incidents.length;
  const rows = told.slice(0, COUNTED).map((one) => [
    el("button", { type: "button", class: "link", title: "Show these incidents", onclick: () => narrow(one.name) }, one.name),
    length(one.incidents.length / most), one.incidents.length.toLocaleString("en-US"), span(one.lost_seconds * 1000), span(inMs(one.mtbf_seconds)),
  ]);
  const more = told.length > COUNTED ? el("p", { class: "quiet" }, `and ${(told.length - COUNTED).toLocaleString("en-US")} more: see taskd report --json`) : "";
  return card(name, "counts", table([what, "", "incidents", "lost", "MTBF"], rows), more);
}

// The filter takes the words that a label has in common with the list.
function narrow(label) {
  const found = label.match(/rank \d+/) || label.match(/^node \d+/);
  byId("filter").value = found ? found[0] : label;
  filter();
  byId("incidents-section").scrollIntoView();
}

function length(share) {
  return svg("svg", { class: "length", width: 70, height: 10, "aria-hidden": "true" }, svg("rect", { class: "bar", width: Math.max(share * 70, 1), height: 10, rx: 2 }));
}

function shrunken() {
  const told = data.shrunk;
  if (!told.length) return null;
  const rows = told.slice(-20).map(({ at, took, ranks, of, shares, who }) => [
    `${day(at)} ${clock(at)}`, span(took), `${ranks.toLocaleString("en-US")} of ${of.toLocaleString("en-US")}`, `up to ${shares} ×`, who,
  ]);
  const more = told.length > 20 ? el("p", { class: "quiet" }, `and ${told.length - 20} before: see taskd report --json`) : "";
  const note = el("p", { class: "quiet" }, "When ranks were away and others stood in for them, with the same global batch.");
  return card("Ranks that were away", "wide", table(["since", "for", "ranks", "a step takes", "away"], rows), more, note);
}

function slowRanks() {
  const slow = data.slow_ranks;
  if (!slow.length) return null;
  const most = Math.max(...slow.map(({ ratio }) => ratio));
  const rows = slow.slice(0, 20).map(({ rank, node, ratio, seen, at }) => [
    `rank ${rank}, node ${node}`, spotted(at, most), `${ratio.toFixed(2)} ×`, seen.toLocaleString("en-US"),
  ]);
  const more = slow.length > 20 ? el("p", { class: "quiet" }, `and ${slow.length - 20} more: see taskd report --json`) : "";
  const note = el("p", { class: "quiet" }, "Ranks whose steps took at least 1.25 times as long as the median rank's, over the time of the job; the darker, the slower. Ranks that wait for each other in every step all take the time of the slowest.");
  return card("Slow ranks", "wide", table(["rank", "from start to end", "at most", "entries"], rows), more, note);
}

function spotted(spots, most) {
  const root = svg("svg", { width: "100%", height: 14, viewBox: "0 0 600 14", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "strip", width: 600, height: 14 }));
  for (const [at, ratio] of spots) {
    const shade = most > 1.25 ? 0.35 + (0.65 * (ratio - 1.25)) / (most - 1.25) : 1;
    root.append(svg("rect", { class: "spot", x: (at / Math.max(data.length, 1)) * 596, width: 4, height: 14, opacity: Math.max(shade, 0.35).toFixed(2) }, title(`${day(at)} ${clock(at)}: ${ratio.toFixed(2)} times the median`)));
  }
  return root;
}

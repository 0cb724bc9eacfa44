// Repairs by phase and strategy, what is to blame, slow ranks.

function drawTables() {
  const found = [
    repairs(),
    counts("Causes", "cause", data.causes), counts("Nodes", "node", data.nodes),
    counts("Devices", "device", data.devices), counts("Fault codes", "code", data.codes),
    slowRanks(),
  ];
  byId("tables").append(...found.filter(Boolean));
}

function card(name, css, ...content) {
  return el("section", { class: `card ${css}` }, el("h2", {}, name), ...content);
}

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "data" },
    el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell)))))));
}

function repairs() {
  if (!data.mttr.length) return null;
  const phases = data.phases.filter((phase) => data.mttr.some((row) => row[6].some(([p]) => p === phase)));
  const most = Math.max(...data.mttr.map((row) => row[2]), 1e-9);
  const rows = data.mttr.map(([name, repaired, mean, median, p95, worst, spent]) => {
    const known = Object.fromEntries(spent);
    return [name, String(repaired), stack(spent, most), ...[mean, median, p95, worst].map(span), ...phases.map((p) => (p in known ? span(known[p]) : "–"))];
  });
  const legend = el("div", { class: "legend" }, phases.map((phase) => el("span", {}, swatch(phase), phase)));
  return card("Time to repair (MTTR), mean by phase", "wide", legend, table(["strategy", "repairs", "", "mean", "median", "95%", "most", ...phases], rows));
}

function stack(spent, most) {
  const root = svg("svg", { class: "stack", height: 14, viewBox: "0 0 220 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const [phase, ms] of spent) {
    const width = (ms / most) * 220;
    root.append(svg("rect", { class: phase, x: at, y: 1, width, height: 12 }, title(`${phase} ${span(ms)}`)));
    at += width;
  }
  return root;
}

function counts(name, what, [all, told]) {
  if (!told.length) return null;
  const most = Math.max(...told.map(([, times]) => times));
  const rows = told.map(([label, times, lost, between]) => [
    el("button", { type: "button", class: "link", title: "Show these incidents", onclick: () => narrow(label) }, label),
    length(times / most), times.toLocaleString("en-US"), span(lost), span(between),
  ]);
  const more = all > told.length ? el("p", { class: "quiet" }, `and ${(all - told.length).toLocaleString("en-US")} more: see taskd report --json`) : "";
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

function slowRanks() {
  if (!data.slow.length) return null;
  const most = Math.max(...data.slow.map(([, , ratio]) => ratio));
  const rows = data.slow.slice(0, 20).map(([rank, node, ratio, seen, spots]) => [
    `rank ${rank}, node ${node}`, spotted(spots, most), `${ratio.toFixed(2)} ×`, seen.toLocaleString("en-US"),
  ]);
  const more = data.slow.length > 20 ? el("p", { class: "quiet" }, `and ${data.slow.length - 20} more: see taskd report --json`) : "";
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

// One incident in full.

function drawDetail(n) {
  const detail = detailOf(n), box = byId("detail");
  box.replaceChildren(...[
    heading(n),
    el("p", {}, sentence(n, detail)),
    el("ul", { class: "faults" }, detail.faults.map((fault) => el("li", {}, fault))),
    detail.entered.length || detail.rounds.length ? phaseLegend(detail) : null,
    detail.entered.length || detail.rounds.length ? gantt(n, detail) : phaseTable(detail),
    ...attempts(detail),
    ...said(n, detail),
  ].filter(Boolean));
  box.hidden = false;
}

function heading(n) {
  return el("header", { class: "tools" },
    el("h3", {}, sign(stateOf(n)), ` Incident ${n + 1}, ${day(columns.began[n])} ${clock(columns.began[n], true)}`),
    el("button", { type: "button", onclick: close }, "Close ", el("kbd", {}, "Esc")));
}

function sentence(n, detail) {
  const strategy = text(columns.strategy[n]), result = text(columns.result[n]);
  const how = result === "not over" ? "Not over where the journal ends" : result[0].toUpperCase() + result.slice(1);
  const by = strategy ? `${result === "not over" ? ", under" : " by"} ${strategy}` : "";
  const parts = [`${how}${by}, ${span(columns.took[n])}`];
  if (detail.replaced) {
    const shown = detail.ranks.slice(0, 12).join(", ");
    parts.push(`replaced: ${detail.replaced === 1 ? "rank" : "ranks"} ${shown}${detail.replaced > 12 ? ` and ${detail.replaced - 12} more` : ""}`);
  }
  if (columns.step[n] >= 0) parts.push(`resumed at step ${columns.step[n].toLocaleString("en-US")}, ${count(columns.again[n], "committed step")} done twice`);
  parts.push(`cost ${span(columns.lost[n])}`);
  if (columns.instead[n] !== null) parts.push(`a restart from the last checkpoint would have cost ${span(columns.instead[n])}`);
  return `${parts.join("; ")}.`;
}

function phaseTable(detail) {
  if (!detail.phases.length) return null;
  return el("p", {}, detail.phases.map(([phase, ms]) => `${phase} ${span(ms)}`).join(", "));
}

function attempts(detail) {
  if (!detail.tried.length) return [];
  return [el("h3", {}, "What was tried"), el("ul", { class: "faults" }, detail.tried.map((tried) => el("li", {}, tried)))];
}

function said(n, detail) {
  if (!detail.lines.length) return [];
  const more = detail.unsaid ? [el("p", { class: "quiet" }, `${count(detail.unsaid, "more line")}: see the journal`)] : [];
  return [el("h3", {}, "Decisions and log"), lineTable(detail.lines, (at) => `+${span(Math.max(at, 0))}`), ...more];
}

function lineTable(lines, when) {
  return el("table", { class: "lines" }, el("tbody", {}, lines.map(({ at, kind, text: told }) =>
    el("tr", {}, el("td", {}, when(at)), el("td", {}, kind), el("td", {}, told)))));
}

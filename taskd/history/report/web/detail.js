// One incident in full.

function drawDetail(n) {
  const detail = incidents[n], box = byId("detail");
  box.replaceChildren(...[
    heading(n),
    el("p", {}, sentence(n, detail)),
    el("ul", { class: "faults" }, detail.faults.map((fault) => el("li", {}, fault))),
    detail.entered.length || detail.rounds.length ? phaseLegend(detail) : null,
    detail.entered.length || detail.rounds.length ? gantt(n, detail) : phaseTable(detail),
    ...deaths("Processes that ended", detail.deaths),
    ...attempts(detail),
    ...said(n, detail),
    ...logs(detail),
  ].filter(Boolean));
  box.hidden = false;
}

function heading(n) {
  return el("header", { class: "tools" },
    el("h3", {}, sign(stateOf(n)), ` Incident ${n + 1}, ${day(incidents[n].at)} ${clock(incidents[n].at, true)}`),
    el("button", { type: "button", onclick: close }, "Close ", el("kbd", {}, "Esc")));
}

function sentence(n, detail) {
  const strategy = incidents[n].strategy, result = incidents[n].result;
  const how = result === "not over" ? "Not over where the journal ends" : result[0].toUpperCase() + result.slice(1);
  const by = strategy ? `${result === "not over" ? ", under" : " by"} ${strategy}` : "";
  const parts = [`${how}${by}, ${span(incidents[n].took)}`];
  const replaced = detail.replaced.length;
  if (replaced) {
    const shown = detail.replaced.slice(0, 12).join(", ");
    parts.push(`replaced: ${replaced === 1 ? "rank" : "ranks"} ${shown}${replaced > 12 ? ` and ${replaced - 12} more` : ""}`);
  }
  if (incidents[n].step >= 0) parts.push(`resumed at step ${incidents[n].step.toLocaleString("en-US")}, ${count(incidents[n].steps_repeated, "repeated step")}`);
  parts.push(`cost ${span(incidents[n].lost)}`);
  if (incidents[n].instead !== null) parts.push(`a restart of all ranks would have cost ${span(incidents[n].instead)}`);
  return `${parts.join("; ")}.`;
}

function phaseTable(detail) {
  const phases = Object.entries(detail.phases);
  return phases.length ? el("p", {}, phases.map(([phase, seconds]) => `${phase} ${span(seconds * 1000)}`).join(", ")) : null;
}

function attempts(detail) {
  if (!detail.tried.length) return [];
  return [el("h3", {}, "What was tried"), el("ul", { class: "faults" }, detail.tried.map((tried) => el("li", {}, tried)))];
}

function said(n, detail) {
  if (!detail.lines.length) return [];
  const more = detail.unsaid ? [el("p", { class: "quiet" }, `${count(detail.unsaid, "more line")}: see the journal`)] : [];
  return [el("h3", {}, "Decisions"), lineTable(detail.lines, (at) => `+${span(Math.max(at, 0))}`), ...more];
}

// How processes ended: who and where, and the traceback, which several may share.
function deaths(name, found) {
  if (!found.length) return [];
  const told = new Map();
  const parts = found.map((death) => {
    const where = [`rank ${death.rank}`, `pid ${death.pid}`, ...(death.node >= 0 ? [`node ${death.node}`] : []), ...(death.host ? [death.host] : [])].join(" · ");
    const said = [el("p", {}, el("b", {}, where), ` ${death.cause}${death.raised ? ` after ${death.raised}` : ""}`)];
    if (!death.traceback) return said;
    if (told.has(death.traceback)) return [...said, el("p", { class: "quiet" }, `The traceback is that of rank ${told.get(death.traceback)}.`)];
    told.set(death.traceback, death.rank);
    const open = told.size <= 2 ? { open: "" } : {};
    return [...said, el("details", open, el("summary", {}, death.raised ? "Traceback" : "Where its threads were"), el("pre", {}, death.traceback.trimEnd()))];
  });
  return [el("h3", {}, name), ...parts.flat()];
}

function logs(detail) {
  if (!detail.logs.length) return [];
  const lines = detail.logs.map(({ at, name, text }) => ({ at, kind: name, text: text.replace(/^\S+ \S+ /, "") }));
  const more = detail.longer.length ? [el("p", { class: "quiet" }, `There is more in ${detail.longer.map((name) => `${name}.log`).join(", ")}.`)] : [];
  return [el("h3", {}, "Logs around it"), lineTable(lines, (at) => `${at < 0 ? "−" : "+"}${span(Math.abs(at))}`), ...more];
}

const loud = (text) => (/^(ERROR|CRITICAL) /.test(text) ? "error" : /^WARNING /.test(text) ? "warn" : "");

function lineTable(lines, when) {
  return el("table", { class: "lines" }, el("tbody", {}, lines.map(({ at, kind, text: told }) =>
    el("tr", {}, el("td", {}, when(at)), el("td", {}, kind), el("td", { class: loud(told) }, told)))));
}

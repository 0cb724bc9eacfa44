// The list of incidents: only the rows that are seen are in the page.

const list = { shown: [], selected: -1, opened: -1, all: false };
const HIGH = 30, SPARE = 6, PRINTED = 500;

function drawList() {
  const box = byId("list");
  if (!list.shown.length) {
    box.replaceChildren(el("div", { class: "empty" }, total ? "No incident has these words." : "No incident."));
    return;
  }
  const space = el("div", { class: "space" });
  space.style.height = `${list.shown.length * HIGH}px`;
  box.replaceChildren(heads(), space);
  drawRows();
}

function heads() {
  const names = [["", "#"], ["", ""], ["when", "began"], ["", "cause"], ["strategy", "strategy"], ["took right", "took"], ["right", "lost"], ["steps right", "repeated"]];
  return el("div", { class: "row heads", role: "presentation" }, names.map(([css, name]) => el("span", { class: css }, name)));
}

function drawRows() {
  const box = byId("list"), space = box.querySelector(".space");
  if (!space) return;
  const first = list.all ? 0 : Math.max(Math.floor(box.scrollTop / HIGH) - SPARE, 0);
  const last = list.all ? PRINTED : Math.ceil((box.scrollTop + box.clientHeight) / HIGH) + SPARE;
  const rows = list.shown.slice(first, last).map((n, index) => {
    const row = rowOf(n);
    row.style.top = `${(first + index) * HIGH}px`;
    return row;
  });
  if (list.all && list.shown.length > PRINTED) rows.push(el("p", { class: "quiet" }, `and ${count(list.shown.length - PRINTED, "more incident")}`));
  space.replaceChildren(...rows);
  box.setAttribute("aria-activedescendant", list.selected >= 0 ? `row-${list.selected}` : "");
}

function rowOf(n) {
  const cell = (words, css = "") => el("span", { class: css, title: words }, words);
  const state = incidents[n].result;
  return el("div", {
    class: "row", role: "option", id: `row-${n}`, "aria-selected": String(n === list.selected), onclick: () => open(n),
  },
    cell(String(n + 1)), el("span", { title: state }, sign(stateOf(n))), cell(`${day(incidents[n].at)} ${clock(incidents[n].at)}`, "when"),
    cell(causeOf(n)), cell(incidents[n].strategy || state, "strategy"), cell(span(incidents[n].took), "took right"),
    cell(span(incidents[n].lost), "right"), cell(stepsOf(n), "steps right"));
}

function select(n) {
  list.selected = n;
  const at = list.shown.indexOf(n), box = byId("list");
  if (at >= 0) {
    if (at * HIGH < box.scrollTop) box.scrollTop = at * HIGH;
    if ((at + 2) * HIGH > box.scrollTop + box.clientHeight) box.scrollTop = (at + 2) * HIGH - box.clientHeight;
  }
  drawRows();
  drawTimeline();
  if (list.opened >= 0 && n >= 0) open(n, false);
}

function move(by) {
  if (!list.shown.length) return;
  const at = list.shown.indexOf(list.selected);
  const next = at < 0 ? (by > 0 ? 0 : list.shown.length - 1) : Math.min(Math.max(at + by, 0), list.shown.length - 1);
  select(list.shown[next]);
}

function open(n, scroll = true) {
  list.opened = n;
  if (list.selected !== n) {
    list.opened = -1;
    select(n);
    list.opened = n;
  }
  drawDetail(n);
  if (scroll) byId("detail").scrollIntoView({ block: "nearest" });
}

function close() {
  list.opened = -1;
  byId("detail").hidden = true;
  byId("detail").replaceChildren();
  byId("list").focus();
}

function filter() {
  const wanted = byId("filter").value;
  list.shown = matching(wanted);
  byId("found").textContent = wanted.trim() ? `${list.shown.length.toLocaleString("en-US")} of ${count(total, "incident")}` : count(total, "incident");
  byId("list").scrollTop = 0;
  drawList();
}

// Draws the page.

function begin() {
  byId("job").textContent = `job ${data.job || "without a name"}`;
  byId("summary").textContent = data.summary;
  byId("facts").append(...data.facts.map((fact) => el("span", {}, fact)));
  byId("figures").append(...data.figures.map(([name, value, note]) => el("div", { class: "figure" }, el("b", {}, value), name, el("small", {}, note))));
  byId("assumed").textContent = data.assumed || "No incident can be compared with a restart.";
  byId("log").append(lineTable(data.lines, (at) => `${day(at)} ${clock(at)}`));
  if (data.unsaid) byId("log").append(el("p", { class: "quiet" }, `${count(data.unsaid, "more line")}: see the journal`));
  themes();
  timelineLegend();
  drawTables();
  filter();
  drawTimeline();
  listen();
  const asked = Number((location.hash.match(/^#incident-(\d+)$/) || [])[1]);
  if (asked >= 1 && asked <= total) open(asked - 1);
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
}

function listen() {
  document.addEventListener("keydown", pressed);
  byId("filter").addEventListener("input", filter);
  byId("list").addEventListener("scroll", drawRows, { passive: true });
  byId("theme").addEventListener("click", turn);
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => show(0, Math.max(data.length, 1)));
  window.addEventListener("resize", () => { drawTimeline(); drawRows(); if (list.opened >= 0) drawDetail(list.opened); });
  window.addEventListener("hashchange", () => {
    const asked = Number((location.hash.match(/^#incident-(\d+)$/) || [])[1]);
    if (asked >= 1 && asked <= total) open(asked - 1);
  });
  brushing();
}

begin();

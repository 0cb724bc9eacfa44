// Draws the page.

function draw() {
  byId("job").textContent = `job ${data.job || "without a name"}`;
  byId("summary").textContent = data.summary;
  byId("facts").replaceChildren(...data.facts.map((fact) => el("span", {}, fact)));
  byId("figures").replaceChildren(...data.figures.map(([name, value, note]) => el("div", { class: "figure" }, el("b", {}, value), name, el("small", {}, note))));
  byId("assumed").textContent = data.assumed || "No incident can be compared with a restart.";
  const more = data.unsaid ? [el("p", { class: "quiet" }, `${count(data.unsaid, "more line")}: see the journal`)] : [];
  byId("log").replaceChildren(...deaths("Processes that ended outside of incidents", data.deaths), lineTable(data.lines, (at) => `${day(at)} ${clock(at)}`), ...more);
  timelineLegend();
  drawSteps();
  drawTables();
  filter();
  drawTimeline();
}

function again() {
  drawTimeline();
  drawSteps();
  drawTables();
  drawRows();
  if (list.opened >= 0) drawDetail(list.opened);
}

function asked() {
  const n = Number((location.hash.match(/^#incident-(\d+)$/) || [])[1]);
  if (n >= 1 && n <= total) open(n - 1);
}

function listen() {
  document.addEventListener("keydown", pressed);
  byId("filter").addEventListener("input", filter);
  byId("list").addEventListener("scroll", drawRows, { passive: true });
  byId("theme").addEventListener("click", turn);
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", showAll);
  window.addEventListener("resize", again);
  window.addEventListener("hashchange", asked);
  brushing();
}

function begin() {
  adopt(JSON.parse(byId("data").textContent));
  timeline.to = whole();
  themes();
  draw();
  listen();
  asked();
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
}

begin();

// The page of a running job, as taskd report --serve serves it: asks for what is new.

const AGAIN = 3000; // ms
let version = "";

async function refresh() {
  let said = "not reached: the page is as it was";
  try {
    const answer = await fetch("data", { cache: "no-store", headers: version ? { "If-None-Match": version } : {} });
    if (answer.status === 200) {
      version = answer.headers.get("ETag");
      renew(await answer.json());
    }
    if (answer.status === 200 || answer.status === 304) said = data.end ? "the job has ended" : `live, ${new Date().toISOString().slice(11, 19)} UTC`;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // nobody answers
  }
  byId("live").textContent = said;
  byId("live").className = data.end ? "over" : said.startsWith("live") ? "on" : "off";
  setTimeout(refresh, AGAIN);
}

function renew(told) {
  const all = seesAll(), scrolled = byId("list").scrollTop, opened = list.opened;
  adopt(told);
  if (all || timeline.to > whole()) [timeline.from, timeline.to] = [0, whole()];
  draw();
  byId("list").scrollTop = scrolled;
  if (opened >= 0 && opened < total) drawDetail(opened);
}

refresh();

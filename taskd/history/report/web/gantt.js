// What each rank did in an incident, and when. A rank's bar has the color of the phase that ends
// with it; a gray line is a wait for others. The first row has the phases of the job.

const ROW = 20, LINES_TOLD = 500;
let NAMES = 150, TICKS = 24; // room for names and for what is above the rows

function gantt(n, detail) {
  const width = Math.max(byId("list").clientWidth - 34, 240);
  NAMES = onPhone() ? 64 : 150;
  TICKS = detail.rounds.length > 1 ? 38 : 24;
  const end = Math.max(incidents[n].took, ...lastMoments(detail), 1);
  const x = (ms) => NAMES + (Math.max(ms, 0) / end) * (width - NAMES - 16);
  const rows = rankRows(detail);
  const height = TICKS + ROW * (rows.length + 1) + 6;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Phases of each rank" });
  root.append(...ticks(end, x, height, width), ...jobRow(detail, end, x), ...roundLines(detail, x, height), ...eventTicks(detail, x));
  rows.forEach((row, index) => root.append(...rankRow(row, TICKS + ROW * (index + 1), x, detail)));
  return el("div", { class: "gantt", tabindex: 0, "aria-label": "Phases of each rank, can be scrolled" }, root);
}

const ended = (event) => Object.entries(data.events)[event]; // [event, the phase that ends with it]

function lastMoments(detail) {
  return detail.rounds.flatMap((round) => round.moments.filter(Boolean).flatMap((m) => m.filter((t) => t !== null)));
}

// The ranks of all rounds: each with its moments in every round, and the ones that are folded.
function rankRows(detail) {
  const rows = new Map();
  detail.rounds.forEach((round) => round.ranks.forEach((rank, index) => {
    if (!rows.has(rank)) rows.set(rank, { rank, node: round.nodes[index], rounds: [] });
    rows.get(rank).rounds.push({ round, moments: round.moments.map((m) => (m ? m[index] : null)) });
  }));
  const more = Math.max(0, ...detail.rounds.map((round) => round.all - round.ranks.length));
  const folded = { folded: more, rounds: detail.rounds.map((round) => ({ round })) };
  return more > 0 ? [folded, ...rows.values()] : [...rows.values()];
}

function phaseStarts(detail, number) {
  const starts = {};
  for (const { round, phase, at } of detail.entered) if (round === number && !(phase in starts)) starts[phase] = at;
  return starts;
}

function rankRow(row, y, x, detail) {
  const name = row.folded ? onPhone() ? `${row.folded.toLocaleString("en-US")} more` : count(row.folded, "other rank") : rankName(row);
  const found = [svg("text", { class: row.folded ? "folded" : "name", x: NAMES - 8, y: y + 14, "text-anchor": "end" }, name)];
  for (const { round, moments } of row.rounds) {
    found.push(...(row.folded ? foldedBars(round, y, x) : bars(round, moments, y, x, detail)));
  }
  return found;
}

function bars(round, moments, y, x, detail) {
  const starts = phaseStarts(detail, round.number), found = [];
  let before = round.began;
  moments.forEach((at, event) => {
    if (at === null) return;
    const [name, phase] = ended(event);
    // a replacement starts as soon as its predecessor's death is known, in whatever phase
    const begun = name === "ready" ? before : Math.min(Math.max(before, starts[phase] ?? before), at);
    if (begun > before) found.push(bar("waits", before, begun, y + 8, 4, x, "waits for others"));
    found.push(bar(phase, begun, at, y + 3, 14, x, `${phase}: ${name} at ${span(at)}, ${span(at - begun)}`));
    before = at;
  });
  return found;
}

function foldedBars(round, y, x) {
  return round.folded.flatMap((fold, event) => {
    if (!fold) return [];
    const [first, middle, last] = fold, [name, phase] = ended(event);
    const words = last === null ? `${name}: the first at ${span(first)}` : `${name}: from ${span(first)} to ${span(last)}, half of them by ${span(middle)}`;
    return [bar(phase, first, last ?? first, y + 3, 14, x, words)];
  });
}

function bar(css, from, to, y, height, x, words) {
  return svg("rect", { class: css, x: x(from), y, width: Math.max(x(to) - x(from), 1), height, rx: 1.5 }, title(words));
}

function rankName({ rank, node }) {
  return node >= 0 && !onPhone() ? `rank ${rank}, node ${node}` : `rank ${rank}`;
}

function jobRow(detail, end, x) {
  const y = TICKS, found = [svg("text", { class: "name", x: NAMES - 8, y: y + 14, "text-anchor": "end" }, "job")];
  detail.entered.forEach(({ phase, at }, index) => {
    const to = index + 1 < detail.entered.length ? detail.entered[index + 1].at : end;
    if (phase === "CLOSED" || phase === "ENDED") return;
    found.push(bar(phase, at, to, y + 2, 16, x, `${phase}: ${span(to - at)}, from ${span(at)}`));
    if (x(to) - x(at) > phase.length * 7.4 + 6) found.push(svg("text", { class: "inside", x: x(at) + 4, y: y + 14 }, phase));
  });
  return found;
}

function roundLines(detail, x, height) {
  return detail.rounds.slice(1).map((round) => svg("g", {},
    svg("line", { class: "cursor", x1: x(round.began), x2: x(round.began), y1: 16, y2: height }),
    svg("text", { x: x(round.began) + 8, y: 25 }, `round ${round.number}`)));
}

function eventTicks(detail, x) {
  const told = detail.lines.filter(({ kind }) => ["fault", "decision", "kill"].includes(kind)).slice(0, LINES_TOLD);
  return told.map(({ at, kind, text: said }) => svg("path", {
    class: kind === "fault" ? "ended" : "bar", d: `M${x(at) - 4},${TICKS - 8}h8l-4,7z`,
  }, title(`${kind}: ${said}`)));
}

function ticks(end, x, height, width) {
  const step = round(end / Math.max(Math.floor((width - NAMES) / 90), 2));
  const found = [];
  for (let at = 0; at <= end; at += step) {
    found.push(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: 16, y2: height }));
    found.push(svg("text", { x: x(at), y: 11, "text-anchor": !at ? "start" : x(at) > width - 30 ? "end" : "middle" }, at ? span(at) : "0"));
  }
  return found;
}

function phaseLegend(detail) {
  const seen = new Set([...Object.keys(detail.phases), ...detail.entered.map(({ phase }) => phase)]);
  const known = data.phases.filter((phase) => seen.has(phase));
  const found = known.map((phase) => el("span", {}, swatch(phase), phase));
  found.push(el("span", {}, svg("svg", { width: 14, height: 12 }, svg("rect", { class: "waits", y: 4, width: 14, height: 4 })), "waits for others"));
  return el("div", { class: "legend" }, found);
}

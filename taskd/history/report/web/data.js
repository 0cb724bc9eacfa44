// The data of the page, as taskd/report/columns.py writes them.

const data = JSON.parse(byId("data").textContent);
const columns = data.incidents;
const total = columns.began.length;
const text = (n) => data.texts[n];

// The states of an incident: a class for its color, and a shape.
const STATES = {
  repaired: { css: "repaired", shape: "circle" },
  restarted: { css: "restarted", shape: "triangle" },
  ended: { css: "ended", shape: "square" },
  "not over": { css: "open", shape: "diamond" },
};
const WORST = ["ended", "not over", "restarted", "repaired"];
const stateOf = (n) => STATES[text(columns.result[n])] || STATES.repaired;

function shape(state, x, y, size = 5) {
  const at = (points) => points.map(([dx, dy]) => `${x + dx * size},${y + dy * size}`).join(" ");
  if (state.shape === "circle") return svg("circle", { class: state.css, cx: x, cy: y, r: size });
  const corners = {
    triangle: [[0, -1.2], [1.15, 0.9], [-1.15, 0.9]],
    square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    diamond: [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
  }[state.shape];
  return svg("polygon", { class: state.css, points: at(corners) });
}

function sign(state) {
  return svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, shape(state, 6, 6, 4.5));
}

function swatch(css) {
  return svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { class: css, width: 12, height: 12, rx: 2 }));
}

function causeOf(n) {
  const cause = text(columns.cause[n]) || "no fault is named";
  if (columns.rank[n] >= 0) return `rank ${columns.rank[n]}: ${cause}`;
  return columns.node[n] >= 0 ? `node ${columns.node[n]}: ${cause}` : cause;
}

const stepsOf = (n) => (columns.least[n] ? "≥ " : "") + columns.again[n].toLocaleString("en-US");

// An incident in full.
function detailOf(n) {
  const [faults, ranks, replaced, phases, entered, lines, unsaid, tried, rounds] = data.details[n];
  return {
    faults: faults.map(text), ranks, replaced, unsaid,
    phases: phases.map(([phase, ms]) => [text(phase), ms]),
    entered: entered.map(([round, phase, at]) => ({ round, phase: text(phase), at })),
    lines: lines.map(([at, kind, said]) => ({ at, kind: text(kind), text: text(said) })),
    tried: tried.map(text),
    rounds: rounds.map(([number, strategy, began, all, shown, moments, folded]) => ({
      number, strategy: text(strategy), began, all, ranks: shown, moments, folded,
    })),
  };
}

let searched = null;

const plain = (words) => ` ${words.toLowerCase().replace(/[^\p{L}\p{N}-]+/gu, " ").trim()} `;

// The incidents that have every word of the filter in their words; "rank 3" is one word, and a
// number is not a part of another.
function matching(filter) {
  const wanted = (plain(filter).match(/(?:rank|node) \d+|\S+/g) || []).map((word) => (/\d$/.test(word) ? ` ${word} ` : word));
  const every = [...Array(total).keys()];
  if (!wanted.length) return every;
  searched = searched || every.map((n) => {
    const faults = data.details[n][0].map(text).join(" ");
    const ranks = data.details[n][1].map((rank) => `rank ${rank}`).join(" ");
    const node = columns.node[n] >= 0 ? `node ${columns.node[n]}` : "";
    const words = [n + 1, causeOf(n), text(columns.strategy[n]), text(columns.result[n]), node, ranks, faults];
    return plain(words.join(" "));
  });
  return every.filter((n) => wanted.every((word) => searched[n].includes(word)));
}

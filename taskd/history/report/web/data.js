// The data of the page, as page.py writes them: those of taskd report --json, and more. Here times
// are in ms after the first entry.

let data, incidents, total;

function adopt(told) {
  data = told;
  incidents = data.incidents;
  total = incidents.length;
  searched = null;
  data.zero = data.began * 1000;
  for (const one of incidents) {
    one.at = (one.began - data.began) * 1000;
    one.took = one.seconds * 1000;
    one.lost = one.lost_seconds * 1000;
    one.instead = inMs(one.restart_from_checkpoint_seconds);
  }
  for (const one of data.shrunk) {
    one.at = (one.began - data.began) * 1000;
    one.took = one.seconds * 1000;
  }
}

const trains = ({ ranks, of, shares }) => `${ranks.toLocaleString("en-US")} of ${of.toLocaleString("en-US")} ranks train, a step takes up to ${count(shares, "time")} as long`;

function inMs(seconds) {
  return seconds === null ? null : seconds * 1000;
}

// The states of an incident: a class for its color, and a shape.
const STATES = {
  repaired: { css: "repaired", shape: "circle" },
  restarted: { css: "restarted", shape: "triangle" },
  ended: { css: "ended", shape: "square" },
  "not over": { css: "open", shape: "diamond" },
};
const WORST = ["ended", "not over", "restarted", "repaired"];
const stateOf = (n) => STATES[incidents[n].result] || STATES.repaired;

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
  const cause = incidents[n].cause || "no fault is named";
  if (incidents[n].rank >= 0) return `rank ${incidents[n].rank}: ${cause}`;
  return incidents[n].node >= 0 ? `node ${incidents[n].node}: ${cause}` : cause;
}

const stepsOf = (n) => (incidents[n].steps_repeated_at_least ? "≥ " : "") + incidents[n].steps_repeated.toLocaleString("en-US");

let searched = null;

const plain = (words) => ` ${words.toLowerCase().replace(/[^\p{L}\p{N}-]+/gu, " ").trim()} `;

// The incidents that have every word of the filter in their words; "rank 3" is one word, and a
// number is not a part of another.
function matching(filter) {
  const wanted = (plain(filter).match(/(?:rank|node) \d+|\S+/g) || []).map((word) => (/\d$/.test(word) ? ` ${word} ` : word));
  const every = [...Array(total).keys()];
  if (!wanted.length) return every;
  searched = searched || every.map((n) => {
    const faults = incidents[n].faults.join(" ");
    const ranks = incidents[n].replaced.map((rank) => `rank ${rank}`).join(" ");
    const node = incidents[n].node >= 0 ? `node ${incidents[n].node}` : "";
    const words = [n + 1, causeOf(n), incidents[n].strategy, incidents[n].result, node, ranks, faults];
    return plain(words.join(" "));
  });
  return every.filter((n) => wanted.every((word) => searched[n].includes(word)));
}

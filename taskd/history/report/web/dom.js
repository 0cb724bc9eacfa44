// Makes elements. Texts of the job come into the page by textContent alone, never as HTML.

const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function title(text) {
  return svg("title", {}, text);
}

// -- numbers and times as words --------------------------------------------------------------------

function span(ms) {
  if (ms === null) return "–";
  if (ms < 999.5) return `${ms < 9.95 && ms > 0 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  return twoUnits(seconds);
}

function twoUnits(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let n = units.findIndex(([, size]) => seconds >= size);
  if (n < 0 || n === 3) return `${Math.round(seconds)} s`;
  const small = units[n + 1][1];
  const whole = Math.round(seconds / small) * small;
  if (n > 0 && whole >= units[n - 1][1]) n -= 1;
  const large = Math.floor(whole / units[n][1]);
  const rest = Math.round((whole - large * units[n][1]) / units[n + 1][1]);
  return `${large} ${units[n][0]}${rest ? ` ${rest} ${units[n + 1][0]}` : ""}`;
}

// A step of an axis: about so large, and a round number.
function round(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((m) => m * power).find((size) => size >= wanted * 0.999);
}

const onPhone = () => window.innerWidth <= 640;
const two = (n) => String(n).padStart(2, "0");

function clock(ms, withMillis = false) {
  const at = new Date(data.zero + ms);
  const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
  return withMillis ? `${time}.${String(at.getUTCMilliseconds()).padStart(3, "0")}` : time;
}

function day(ms) {
  const at = new Date(data.zero + ms);
  return `${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
}

const count = (n, one) => `${n.toLocaleString("en-US")} ${one}${n === 1 ? "" : "s"}`;

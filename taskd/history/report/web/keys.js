// The keyboard, and light and dark.

const KEYS = {
  ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1),
  PageDown: () => move(10), PageUp: () => move(-10),
  Home: () => move(-Infinity), End: () => move(Infinity),
  Enter: () => (list.selected >= 0 ? open(list.selected) : move(1)),
  Escape: () => (list.opened >= 0 ? close() : clear()),
  "/": () => byId("filter").focus(), "?": () => byId("help").showModal(),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: showAll, t: () => turn(),
};
const TYPED = ["Escape", "Enter", "ArrowDown", "ArrowUp"]; // these work in the filter too

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = event.target === byId("filter");
  const follow = KEYS[event.key];
  if (!follow || (typing && !TYPED.includes(event.key))) return;
  if (event.target.tagName === "BUTTON" && event.key === "Enter") return;
  // these scroll the page, where the list is not what is used
  const scrolls = ["Home", "End", "PageDown", "PageUp"].includes(event.key);
  if (scrolls && event.target !== byId("list")) return;
  event.preventDefault();
  if (typing && (event.key === "ArrowDown" || event.key === "Enter")) byId("list").focus();
  follow();
}

function clear() {
  byId("filter").value = "";
  filter();
  byId("list").focus();
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function turn() {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

function themes() {
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    theme("light");
    list.all = true;
    drawRows();
  });
  window.addEventListener("afterprint", () => {
    list.all = false;
    theme(before || "light");
    drawRows();
  });
}

// Light, dark, or as the system has it.

import { byId } from "./dom.js";

const STORE = "slipstream.theme";
const NAMES = { system: "as the system", light: "light", dark: "dark" };

export function setUpTheme() {
  let chosen = "system";
  try {
    chosen = localStorage.getItem(STORE) ?? "system";
  } catch {
    // storage is refused
  }
  apply(chosen in NAMES ? chosen : "system");
  byId("theme").addEventListener("click", () => {
    const order = Object.keys(NAMES);
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
    apply(next);
    try {
      localStorage.setItem(STORE, next);
    } catch {
      // as above
    }
  });
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  byId("theme").title = `Colours: ${NAMES[theme]}`;
}

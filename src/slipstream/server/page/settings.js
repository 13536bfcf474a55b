// Sampling settings, the system prompt and the API key. Settings are kept in the browser; the key until the tab closes.

import { byId, el } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, value: 0.7, hint: "0 takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.05, max: 1, step: 0.05, value: 0.95, hint: "share of probability kept" },
  { name: "top_k", label: "Top k", min: 0, max: 500, step: 1, value: 40, hint: "0 keeps all tokens" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, value: 0, hint: "least probability, relative to the best" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.8, max: 2, step: 0.05, value: 1, hint: "1 does nothing" },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 32768, step: 1, value: 512, hint: "tokens" },
  { name: "seed", label: "Seed", min: 0, max: 2 ** 31, step: 1, value: "", hint: "empty: a new one each time" },
];
const STORE = "slipstream.settings";
const KEY = "slipstream.key";

function read() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

function write(values) {
  try {
    localStorage.setItem(STORE, JSON.stringify(values));
  } catch {
    // storage is refused: the settings hold as long as the page
  }
}

const current = { system: "", ...read() };
let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch {
  // as above
}

export const apiKey = () => key;
export const systemPrompt = () => current.system.trim();

/** Request fields; what is empty is left to the server. */
export function sampling() {
  const fields = {};
  for (const { name, value } of FIELDS) {
    const chosen = current[name] ?? value;
    if (chosen !== "") fields[name] = chosen;
  }
  return fields;
}

/** Build the dialog. `onKey` is called when the API key has changed. */
export function setUpSettings(onKey) {
  const dialog = byId("settings");
  const inputs = FIELDS.map(makeField);
  byId("sampling").append(...inputs.map(({ row }) => row));
  byId("system").value = current.system;
  byId("system").addEventListener("input", (event) => save("system", event.target.value));
  byId("api-key").value = key;
  byId("api-key").addEventListener("change", (event) => {
    key = event.target.value.trim();
    try {
      sessionStorage.setItem(KEY, key);
    } catch {
      // as above
    }
    onKey();
  });
  byId("reset").addEventListener("click", () => {
    for (const { field, input } of inputs) {
      delete current[field.name];
      input.value = field.value;
      input.removeAttribute("aria-invalid");
    }
    save("system", (byId("system").value = ""));
  });
  byId("open-settings").addEventListener("click", () => openSettings());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

export function openSettings(focus = null) {
  byId("settings").showModal();
  if (focus) byId(focus).focus();
}

function makeField(field) {
  const id = `set-${field.name}`;
  const input = el("input", {
    id,
    type: "number",
    inputMode: "decimal",
    min: field.min,
    max: field.max,
    step: field.step,
    value: current[field.name] ?? field.value,
    "aria-describedby": `${id}-hint`,
  });
  input.addEventListener("input", () => {
    const value = input.value === "" ? field.value : Number(input.value);
    const bad = value !== "" && !(value >= field.min && value <= field.max);
    input.toggleAttribute("aria-invalid", bad);
    if (!bad && !input.validity.badInput) save(field.name, value);
  });
  const hint = el("small", { id: `${id}-hint` }, field.hint);
  return { field, input, row: el("div", { class: "field" }, el("label", { htmlFor: id }, field.label), input, hint) };
}

function save(name, value) {
  current[name] = value;
  write(current);
}

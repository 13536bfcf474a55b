// Small helpers around the DOM. Text always goes in as text nodes; nothing here or elsewhere parses strings as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a child may be a node, a string, or null (left out). */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set text only when it differs, so that an unchanged number causes no work. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let clearing = 0;

/** Tell screen readers. */
export function announce(text) {
  const region = byId("announce");
  clearTimeout(clearing);
  region.textContent = text;
  clearing = setTimeout(() => (region.textContent = ""), 10000);
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 1) return `${(value * 1000).toPrecision(value < 0.1 ? 2 : 3).replace(/\.0+$/, "")} ms`;
  return `${value < 100 ? value.toPrecision(3) : Math.round(value)} s`;
}

/** The server's messages begin in lower case, because they follow a place. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

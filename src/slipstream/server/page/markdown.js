// Markdown to DOM nodes, for text that nobody trusts: HTML stays text, links go to http(s) and mailto only, no images.
//
// Every function works on [start, end) of the whole source, so that each character of the result knows which piece of the
// answer it came from: `write(start, end)` makes its nodes (see answer.js).

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const BULLET = /^( *)([-*+])[ \t]+/;
const NUMBER = /^( *)(\d{1,9})[.)][ \t]+/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ *\|?(?: *:?-+:? *\|)+ *:?-*:? *\|? *$/;
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const MAX_DEPTH = 12;

/** Top-level blocks of `source`: {kind, start, end, ...}. A block's text never depends on what follows its end. */
export function blocks(source, start = 0, end = source.length) {
  const found = [];
  for (const line of linesOf(source, start, end)) addLine(found, source, line);
  return found.filter((block) => block.kind !== "blank");
}

/** The nodes of one block. */
export function render(source, block, write, depth = 0) {
  const inner = (start, end) => inline(source, start, end, write, depth);
  switch (block.kind) {
    case "heading":
      return node(`h${Math.min(block.level + 2, 6)}`, inner(block.textStart, block.end));
    case "rule":
      return node("hr", []);
    case "code":
      return codeBlock(source, block, write);
    case "quote":
      return node("blockquote", nested(source, block.parts, write, depth));
    case "list":
      return list(source, block, write, depth);
    case "table":
      return table(source, block, write, depth);
    default:
      return node("p", joinLines(block.lines, inner));
  }
}

function linesOf(source, start, end) {
  const lines = [];
  for (let at = start; at < end; ) {
    const newline = source.indexOf("\n", at);
    const stop = newline < 0 || newline > end ? end : newline;
    lines.push({ start: at, end: stop });
    at = stop + 1;
  }
  return lines;
}

function addLine(found, source, line) {
  const text = source.slice(line.start, line.end);
  const last = found.at(-1);
  if (last?.kind === "code" && !last.closed) {
    const fence = text.match(/^ {0,3}(`{3,}|~{3,})\s*$/);
    if (fence && fence[1][0] === last.fence[0] && fence[1].length >= last.fence.length) last.closed = true;
    else last.lines.push(line);
    last.end = line.end;
    return;
  }
  const indent = text.search(/\S/);
  const inList = last?.kind === "list" && (indent >= 2 || (!last.blank && indent >= 0 && isLazy(text)));
  if (last?.kind === "list" && indent < 0) {
    last.blank = true;
    last.items.at(-1).push(line);
    return;
  }
  const marker = listMarker(text);
  if (marker && (last?.kind !== "list" || marker.indent < 2)) {
    const item = [{ start: line.start + marker.width, end: line.end }];
    if (last?.kind === "list" && last.ordered === marker.ordered) {
      last.items.push(item);
      last.end = line.end;
      last.blank = false;
    } else if (marker.indent < 4) {
      found.push({ kind: "list", ordered: marker.ordered, first: marker.first, items: [item], ...line });
    }
    if (found.at(-1).kind === "list") return;
  }
  if (inList) {
    last.items.at(-1).push({ start: line.start + Math.min(indent, last.ordered ? 3 : 2), end: line.end });
    last.end = line.end;
    last.blank = false;
    return;
  }
  if (indent < 0) return void found.push({ kind: "blank", ...line });
  const fence = text.match(FENCE);
  if (fence) return void found.push({ kind: "code", fence: fence[1], language: fence[2], lines: [], ...line });
  const heading = text.match(HEADING);
  if (heading) {
    const textStart = line.start + heading[0].length;
    return void found.push({ kind: "heading", level: heading[1].length, textStart, ...line });
  }
  if (RULE.test(text)) return void found.push({ kind: "rule", ...line });
  const quote = text.match(QUOTE);
  if (quote || (last?.kind === "quote" && isLazy(text))) {
    const part = { start: line.start + (quote ? quote[0].length : 0), end: line.end };
    if (last?.kind !== "quote") return void found.push({ kind: "quote", parts: [part], ...line });
    last.parts.push(part);
    last.end = line.end;
    return;
  }
  if (last?.kind === "table" && text.includes("|")) {
    last.rows.push(line);
    last.end = line.end;
    return;
  }
  if (last?.kind === "paragraph") {
    const head = last.lines.at(-1);
    if (TABLE_RULE.test(text) && last.lines.length === 1 && source.slice(head.start, head.end).includes("|")) {
      found[found.length - 1] = { kind: "table", rows: [head], rule: line, start: last.start, end: line.end };
      return;
    }
    last.lines.push(line);
    last.end = line.end;
    return;
  }
  found.push({ kind: "paragraph", lines: [line], ...line });
}

const isLazy = (text) => !FENCE.test(text) && !HEADING.test(text) && !RULE.test(text) && !QUOTE.test(text) && !listMarker(text);

function listMarker(text) {
  const bullet = text.match(BULLET);
  if (bullet && !RULE.test(text)) return { indent: bullet[1].length, width: bullet[0].length, ordered: false, first: 1 };
  const number = text.match(NUMBER);
  if (!number) return null;
  return { indent: number[1].length, width: number[0].length, ordered: true, first: Number(number[2]) };
}

function node(tag, children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function joinLines(lines, inner) {
  const nodes = [];
  lines.forEach(({ start, end }, index) => {
    if (index) nodes.push(document.createTextNode("\n"));
    nodes.push(...inner(start, end));
  });
  return nodes;
}

/** Blocks of lines that lost their prefix: consecutive lines are parsed as if they were a text of their own. */
function nested(source, parts, write, depth) {
  if (depth >= MAX_DEPTH) return joinLines(parts, write);
  const found = [];
  for (const part of parts) addLine(found, source, part);
  const real = found.filter((block) => block.kind !== "blank");
  if (real.length === 1 && real[0].kind === "paragraph") {
    return joinLines(real[0].lines, (start, end) => inline(source, start, end, write, depth));
  }
  return real.map((block) => render(source, block, write, depth + 1));
}

function list(source, block, write, depth) {
  const made = node(
    block.ordered ? "ol" : "ul",
    block.items.map((item) => node("li", nested(source, item, write, depth + 1))),
  );
  if (block.ordered && block.first !== 1) made.start = block.first;
  return made;
}

function codeBlock(source, block, write) {
  const code = node("code", joinLines(block.lines, write));
  const pre = node("pre", [code]);
  pre.tabIndex = 0;
  const figure = node("figure", [pre]);
  figure.className = "code";
  const caption = document.createElement("figcaption");
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.textContent = "Copy";
  caption.append(node("span", [block.language || "text"]), copy);
  figure.prepend(caption);
  return figure;
}

function table(source, block, write, depth) {
  const cells = ({ start, end }) => {
    const spans = [];
    let from = start;
    for (let at = start; at <= end; at += 1) {
      if (at === end || (source[at] === "|" && source[at - 1] !== "\\")) {
        spans.push(trim(source, from, at));
        from = at + 1;
      }
    }
    if (spans.length > 1 && spans[0].start === spans[0].end) spans.shift();
    if (spans.length > 1 && spans.at(-1).start === spans.at(-1).end) spans.pop();
    return spans;
  };
  const row = (line, tag) =>
    node("tr", cells(line).map(({ start, end }) => node(tag, inline(source, start, end, write, depth))));
  const [head, ...rows] = block.rows;
  const made = node("table", [node("thead", [row(head, "th")]), node("tbody", rows.map((line) => row(line, "td")))]);
  const frame = node("div", [made]);
  frame.className = "table";
  frame.tabIndex = 0;
  return frame;
}

function trim(source, start, end) {
  while (start < end && /\s/.test(source[start])) start += 1;
  while (end > start && /\s/.test(source[end - 1])) end -= 1;
  return { start, end };
}

/** Code spans, emphasis, strikethrough, links; an unclosed mark is text. */
function inline(source, start, end, write, depth) {
  const nodes = [];
  const unclosed = new Set(); // marks that nothing closes from here on: looking again for each would take square time
  let plain = start;
  const flush = (until) => until > plain && nodes.push(...write(plain, until));
  const put = (made, from, to) => {
    flush(from);
    nodes.push(made);
    plain = to;
    return to;
  };
  for (let at = start; at < end; ) {
    at = (depth < MAX_DEPTH && markAt(source, at, start, end, put, write, depth, unclosed)) || at + 1;
  }
  flush(end);
  return nodes;
}

function markAt(source, at, start, end, put, write, depth, unclosed) {
  const sign = source[at];
  const inner = (from, to) => inline(source, from, to, write, depth + 1);
  const find = (text, from) => {
    const found = unclosed.has(text) ? -1 : source.indexOf(text, from);
    if (found >= 0 && found + text.length <= end) return found;
    unclosed.add(text);
    return -1;
  };
  if (sign === "\\" && at + 1 < end && /[!-/:-@[-`{-~]/.test(source[at + 1])) {
    return put(node("span", write(at + 1, at + 2)), at, at + 2);
  }
  if (sign === "`") {
    const ticks = source.slice(at, end).match(/^`+/)[0];
    const close = find(ticks, at + ticks.length);
    if (close < 0) return at + ticks.length;
    return put(node("code", write(at + ticks.length, close)), at, close + ticks.length);
  }
  if (sign === "*" || sign === "_" || (sign === "~" && source[at + 1] === "~")) {
    const inWord = sign === "_" && at > start && /\w/.test(source[at - 1]);
    if (inWord) return 0;
    for (const mark of sign === "~" ? ["~~"] : [sign + sign, sign]) {
      if (!source.startsWith(mark, at) || at + mark.length >= end || /\s/.test(source[at + mark.length])) continue;
      if (unclosed.has(mark)) continue;
      const close = closing(source, mark, at + mark.length, end);
      if (close < 0) unclosed.add(mark);
      if (close < 0) continue;
      const tag = { "~~": "s", "**": "strong", __: "strong" }[mark] ?? "em";
      return put(node(tag, inner(at + mark.length, close)), at, close + mark.length);
    }
    return sign === "~" ? at + 2 : 0;
  }
  if (sign === "[") {
    const middle = find("](", at + 1);
    const close = middle < 0 ? -1 : find(")", middle + 2);
    const target = close < 0 ? "" : source.slice(middle + 2, close).trim();
    if (!SAFE_LINK.test(target)) return 0;
    return put(link(target, inner(at + 1, middle)), at, close + 1);
  }
  if (sign === "h" && (at === start || !/\w/.test(source[at - 1]))) {
    const url = source.slice(at, Math.min(end, at + 2000)).match(/^https?:\/\/[^\s<>"'`)\]]+/)?.[0].replace(/[.,;:!?*_]+$/, "");
    if (url && url.length > 10) return put(link(url, write(at, at + url.length)), at, at + url.length);
  }
  return 0;
}

/** Where an emphasis mark closes: not after a space, not beside another of its kind, `_` not inside a word. */
function closing(source, mark, from, end) {
  for (let at = source.indexOf(mark, from); at >= 0 && at + mark.length <= end; at = source.indexOf(mark, at + 1)) {
    const next = source[at + mark.length];
    if (at === from || /\s/.test(source[at - 1])) continue;
    if (mark.length === 1 && (next === mark || source[at - 1] === mark)) {
      at += next === mark ? 1 : 0;
      continue;
    }
    if (mark[0] === "_" && at + mark.length < end && /\w/.test(next)) continue;
    return at;
  }
  return -1;
}

function link(target, children) {
  const made = node("a", children);
  made.href = target;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

// One answer on the screen: pieces of text as they come, shown as Markdown.
//
// A piece carries its origin: "target" (the model itself) or "draft" (proposed by a drafter and accepted by the model).
// Every run of text becomes a span with data-origin, so that style alone decides whether one sees the difference.

import { blocks, render } from "./markdown.js";

export class Answer {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.pieces = []; // {end, origin}, ascending; neighbours differ
    this.shown = []; // {key, node} of the blocks on the screen
    this.frame = 0;
  }

  add(text, origin = "target") {
    if (!text) return;
    this.text += text;
    const last = this.pieces.at(-1);
    if (last?.origin === origin) last.end = this.text.length;
    else this.pieces.push({ end: this.text.length, origin });
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Replace the blocks that changed; those before keep their nodes, and with them a reader's selection. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const found = blocks(this.text);
    const write = (start, end) => this.runs(start, end);
    found.forEach((block, index) => {
      const key = `${block.kind}\n${block.start}\n${this.text.slice(block.start, block.end)}`;
      const old = this.shown[index];
      if (old?.key === key) return;
      const node = render(this.text, block, write);
      if (old) old.node.replaceWith(node);
      else this.root.append(node);
      this.shown[index] = { key, node };
    });
    for (const { node } of this.shown.splice(found.length)) node.remove();
  }

  runs(start, end) {
    const nodes = [];
    let from = start;
    for (let at = this.pieceAt(start); from < end; at += 1) {
      const { end: stop, origin } = this.pieces[at];
      const span = document.createElement("span");
      span.dataset.origin = origin;
      span.textContent = this.text.slice(from, Math.min(stop, end));
      nodes.push(span);
      from = stop;
    }
    return nodes;
  }

  pieceAt(position) {
    let low = 0;
    let high = this.pieces.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pieces[middle].end > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

// The engine's gauges and the last requests, asked for while somebody looks.

import { ApiError, getJson } from "./api.js";
import { byId, count, el, seconds, sentence, setText } from "./dom.js";
import { openSettings } from "./settings.js";

const PARTS = [
  ["queue", "queue"],
  ["prompt", "prompt"],
  ["batch", "others"],
  ["preemption", "preempted"],
  ["generation", "answer"],
  ["server", "server"],
  ["stream", "reader"],
];
const POLL = 1000;
const POINTS = 60;

export function setUpPanel() {
  const panel = new Panel();
  const button = byId("toggle-panel");
  button.addEventListener("click", () => {
    const open = byId("panel").classList.toggle("open");
    button.setAttribute("aria-expanded", String(open));
  });
  byId("legend").append(...PARTS.map(([part, label]) => el("li", { data: { part } }, label)));
  document.addEventListener("visibilitychange", () => !document.hidden && panel.refresh());
  panel.refresh();
  return { refresh: () => panel.refresh(), model: () => panel.model };
}

class Panel {
  constructor() {
    this.model = null;
    this.before = null; // {at, tokens} of the last look
    this.speeds = [];
    this.timer = 0;
    this.failures = 0;
    this.keys = new Map(); // request id -> what its row shows
    this.running = false;
  }

  async refresh() {
    if (this.running) return;
    clearTimeout(this.timer);
    this.running = true;
    try {
      if (this.model === null) this.model = (await getJson("/v1/models")).data[0]?.id ?? null;
      const [stats, { requests }] = await Promise.all([getJson("/stats"), getJson("/requests?limit=12")]);
      this.failures = 0;
      this.gauges(stats);
      this.list(requests);
      this.state(stats.ready ? "ready" : "starting");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.failures += 1;
      this.state(error.status === 401 ? "locked" : error.status === 0 ? "away" : "starting", error);
    } finally {
      this.running = false;
      const wait = POLL * Math.min(2 ** this.failures, 16);
      if (!document.hidden) this.timer = setTimeout(() => this.refresh(), wait);
    }
  }

  state(state, error = null) {
    byId("dot").dataset.state = state;
    const words = { ready: "ready", starting: "the engine is not ready", away: "no connection", locked: "API key needed" };
    setText(byId("state"), words[state]);
    setText(byId("model"), state === "ready" ? (this.model ?? "no model") : words[state]);
    const notice = byId("panel-notice");
    notice.hidden = state === "ready";
    if (notice.dataset.state === state) return;
    notice.dataset.state = state;
    if (state === "ready") return;
    notice.replaceChildren(sentence(error?.message ?? words[state]));
    if (state === "locked") {
      const open = () => openSettings("api-key");
      notice.append(" ", el("button", { type: "button", class: "link", onclick: open }, "Enter it"));
    }
  }

  gauges(stats) {
    const now = performance.now() / 1000;
    const tokens = stats.num_output_tokens;
    const elapsed = this.before === null ? 0 : now - this.before.at;
    if (elapsed >= 0.5 || this.before === null) {
      const speed = elapsed > 0 ? Math.max(0, tokens - this.before.tokens) / elapsed : 0;
      this.before = { at: now, tokens };
      this.speeds = [...this.speeds, speed].slice(-POINTS);
      setText(byId("g-speed"), speed < 100 ? speed.toFixed(1).replace(/\.0$/, "") : String(Math.round(speed)));
      this.spark();
    }
    setText(byId("g-running"), String(stats.num_running));
    setText(byId("g-running-of"), stats.max_num_seqs ? `of ${stats.max_num_seqs}` : "");
    setText(byId("g-queued"), String(stats.num_waiting));
    const hits = stats.prefix_cache_queries ? stats.prefix_cache_hits / stats.prefix_cache_queries : 0;
    for (const [id, meter, share] of [["g-kv", "m-kv", stats.kv_usage], ["g-hits", "m-hits", hits]]) {
      setText(byId(id), (share * 100).toFixed(share && share < 0.1 ? 1 : 0));
      byId(meter).value = share;
    }
  }

  spark() {
    const top = Math.max(...this.speeds, 1);
    const step = 120 / (POINTS - 1);
    const from = 120 - (this.speeds.length - 1) * step;
    const points = this.speeds.map((speed, at) => `${(from + at * step).toFixed(1)},${(26 - (speed / top) * 24).toFixed(1)}`);
    byId("spark-line").setAttribute("d", `M${points.join("L")}`);
    byId("spark-area").setAttribute("d", `M${from.toFixed(1)},28L${points.join("L")}L120,28Z`);
  }

  /** Rows that did not change keep their nodes, so that an opened one stays open and keeps the focus. */
  list(requests) {
    byId("no-requests").hidden = requests.length > 0;
    const list = byId("requests");
    const old = new Map([...list.children].map((row) => [row.dataset.id, row]));
    const rows = requests.map((request) => {
      const key = JSON.stringify([request.outcome, request.output_tokens, request.cause.text]);
      const before = old.get(request.id);
      if (before && this.keys.get(request.id) === key) return before;
      this.keys.set(request.id, key);
      const row = requestRow(request);
      if (before) row.firstChild.open = before.firstChild.open;
      return row;
    });
    for (const id of [...this.keys.keys()]) if (!requests.some((request) => request.id === id)) this.keys.delete(id);
    const same = rows.length === list.children.length && rows.every((row, at) => list.children[at] === row);
    if (same) return;
    const focused = document.activeElement?.closest?.("[data-id]")?.dataset.id;
    list.replaceChildren(...rows);
    if (focused) rows.find((row) => row.dataset.id === focused)?.querySelector("summary").focus();
  }
}

function requestRow(request) {
  const running = request.outcome === "running";
  const when = new Date(request.arrived_at * 1000).toLocaleTimeString();
  const speed = request.tokens_per_second ? `${request.tokens_per_second.toFixed(1)} tokens/s` : null;
  const facts = [
    `${count(request.prompt_tokens, "prompt token")}${request.cached_tokens ? `, ${request.cached_tokens} cached` : ""}`,
    request.ttft !== null ? `first token after ${seconds(request.ttft)}` : null,
    speed,
    request.preemptions ? `preempted ${count(request.preemptions, "time")}` : null,
  ].filter(Boolean);
  const summary = el(
    "summary",
    {},
    el("span", { class: "row" },
      el("time", { dateTime: new Date(request.arrived_at * 1000).toISOString() }, when),
      el("span", { class: "outcome", data: { outcome: request.outcome } }, words(request.outcome)),
      el("span", { class: "length" }, `${count(request.output_tokens, "token")} · ${running ? "…" : seconds(request.seconds)}`)),
    bar(request),
  );
  return el(
    "li",
    { data: { id: request.id } },
    el("details", {}, summary,
      el("p", { class: "cause" }, request.cause.text),
      request.cause.advice ? el("p", { class: "advice" }, request.cause.advice) : null,
      request.error ? el("p", { class: "advice" }, sentence(request.error)) : null,
      el("p", { class: "facts" }, facts.join(" · ")),
      el("p", { class: "id" }, request.id)),
  );
}

const words = (outcome) => ({ stop: "done", length: "cut", abort: "aborted", disconnect: "left", deadline: "too late" })[outcome] ?? outcome;

function bar(request) {
  const made = el("span", { class: "parts" });
  made.setAttribute("aria-hidden", "true");
  if (!request.parts || request.seconds <= 0) return made;
  for (const [part] of PARTS) {
    const share = request.parts[part] / request.seconds;
    if (share < 0.005) continue;
    const piece = el("span", { data: { part } });
    piece.style.flexGrow = share;
    made.append(piece);
  }
  return made;
}

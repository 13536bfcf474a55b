// The conversation: sending, streaming, stopping, errors.

import { Answer } from "./answer.js";
import { getJson, streamEvents } from "./api.js";
import { announce, byId, count, el, seconds, sentence, setText } from "./dom.js";
import { openSettings, sampling, systemPrompt } from "./settings.js";

const EXAMPLES = ["Why is the sky blue?", "Write a haiku about rain.", "Explain a hash table to a ten-year-old."];

export function setUpChat({ model, onAnswered }) {
  const chat = new Chat(model, onAnswered);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    chat.send();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      chat.send();
    }
  });
  byId("prompt").addEventListener("input", () => chat.fit());
  byId("stop").addEventListener("click", () => chat.stop());
  byId("new-chat").addEventListener("click", () => chat.clear());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("settings").open) chat.stop();
  });
  byId("messages").addEventListener("click", copyCode);
  byId("examples").append(
    ...EXAMPLES.map((text) => el("li", {}, el("button", { type: "button", onclick: () => chat.send(text) }, text))),
  );
}

async function copyCode(event) {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.closest("figure").querySelector("pre").textContent;
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = "Not allowed";
  }
  button.textContent = done;
  announce(done);
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

class Chat {
  constructor(model, onAnswered) {
    this.model = model;
    this.onAnswered = onAnswered;
    this.turns = []; // {role, content}
    this.controller = null;
    this.input = byId("prompt");
    this.scroll = byId("scroll");
  }

  send(text = this.input.value) {
    const content = text.trim();
    if (!content || this.controller) return;
    this.input.value = "";
    this.fit();
    this.turns.push({ role: "user", content });
    byId("welcome").hidden = true;
    byId("messages").append(el("li", { class: "user" }, el("p", { class: "hidden" }, "You"), el("div", {}, content)));
    this.answer();
  }

  stop() {
    this.controller?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    byId("messages").replaceChildren();
    byId("welcome").hidden = false;
    this.input.focus();
  }

  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 240)}px`;
  }

  async answer() {
    const turns = this.turns;
    const controller = (this.controller = new AbortController());
    const view = new AnswerView();
    byId("messages").append(view.item);
    this.busy(true);
    announce("Answering");
    this.toEnd();
    try {
      const system = systemPrompt();
      const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns];
      const body = { model: this.model() ?? undefined, messages, stream: true, ...sampling() };
      body.stream_options = { include_usage: true, continuous_usage_stats: true };
      const opened = (id) => (view.id = id);
      for await (const event of streamEvents("/v1/chat/completions", body, controller.signal, opened)) {
        const atEnd = this.isAtEnd();
        view.take(event);
        if (atEnd) this.toEnd();
      }
      view.finish(view.reason === "length" ? "longest answer reached" : "");
      announce(view.answer.text || "The answer is empty.");
    } catch (error) {
      if (error.name === "AbortError") view.finish("stopped");
      else this.failed(view, error);
    }
    if (this.turns === turns) {
      if (view.answer.text) turns.push({ role: "assistant", content: view.answer.text });
      else if (view.failed) turns.pop();
      this.controller = null;
      this.busy(false);
      if (this.isAtEnd(120)) this.toEnd();
    } else if (this.controller === controller) {
      this.controller = null;
      this.busy(false);
    }
    this.onAnswered();
    view.explain();
  }

  failed(view, error) {
    const question = this.turns.at(-1)?.content ?? "";
    const again = () => {
      view.item.previousElementSibling?.remove();
      view.item.remove();
      if (this.turns.at(-1)?.content === question && this.turns.at(-1)?.role === "user") this.turns.pop();
      this.send(question);
    };
    view.fail(error, again);
  }

  busy(busy) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (busy && document.activeElement === byId("send")) byId("stop").focus();
    if (!busy && (document.activeElement === byId("stop") || document.activeElement === document.body)) this.input.focus();
  }

  isAtEnd(slack = 60) {
    return this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < slack;
  }

  toEnd() {
    requestAnimationFrame(() => (this.scroll.scrollTop = this.scroll.scrollHeight));
  }
}

class AnswerView {
  constructor() {
    this.body = el("div", { class: "text" });
    this.meta = el("p", { class: "meta" });
    this.item = el("li", { class: "assistant" }, el("p", { class: "hidden" }, "Answer"), this.body, this.meta);
    this.item.setAttribute("aria-busy", "true");
    this.answer = new Answer(this.body);
    this.sent = performance.now();
    this.first = null;
    this.firstTokens = 0;
    this.last = null;
    this.tokens = 0;
    this.id = null;
    this.reason = null;
    this.failed = false;
    setText(this.meta, "waiting for the first token");
  }

  take(event) {
    const now = performance.now();
    const tokens = event.usage?.completion_tokens ?? 0;
    if (tokens > this.tokens) {
      if (this.first === null) [this.first, this.firstTokens] = [now, tokens];
      this.last = now;
      this.tokens = tokens;
    }
    const choice = event.choices?.[0];
    if (choice) {
      const characters = [...(choice.delta?.content ?? "")];
      const drafted = choice.accepted_characters ?? 0;
      this.answer.add(characters.slice(0, drafted).join(""), "draft");
      this.answer.add(characters.slice(drafted).join(""));
      this.reason = choice.finish_reason ?? this.reason;
    }
    if (this.first !== null) setText(this.meta, this.numbers());
  }

  numbers(note = "") {
    const parts = [count(this.tokens, "token")];
    const time = (this.last - this.first) / 1000;
    const later = this.tokens - this.firstTokens;
    if (later > 0 && time > 0) parts.push(`${(later / time).toFixed(1)} tokens/s`);
    if (this.first !== null) parts.push(`first after ${seconds((this.first - this.sent) / 1000)}`);
    if (note) parts.push(note);
    return parts.join(" · ");
  }

  finish(note) {
    this.answer.draw();
    this.item.removeAttribute("aria-busy");
    if (!this.answer.text && note !== "stopped") this.body.append(el("p", { class: "empty" }, "The answer is empty."));
    setText(this.meta, this.first === null ? note : this.numbers(note));
  }

  fail(error, again) {
    this.failed = true;
    this.finish("stopped");
    const wait = error.retryAfter ? ` Try again in ${count(Number(error.retryAfter), "second")}.` : "";
    const keyWanted = error.status === 401;
    const action = keyWanted
      ? el("button", { type: "button", onclick: () => openSettings("api-key") }, "Enter an API key")
      : null;
    const box = el(
      "div",
      { class: "error", role: "alert" },
      el("p", {}, sentence(error.message) + wait),
      el("p", { class: "actions" }, action, el("button", { type: "button", onclick: again }, "Try again")),
    );
    this.meta.replaceWith(box);
  }

  /** Ask the server where the time went; it may keep no record, and then nothing is shown. */
  async explain() {
    if (this.id === null || this.failed) return;
    try {
      const { cause } = await getJson(`/requests/${encodeURIComponent(this.id)}`);
      if (cause.kind === "none") return;
      const why = el("details", { class: "why" }, el("summary", {}, "Where did the time go?"));
      why.append(el("p", {}, [cause.text, cause.advice].filter(Boolean).join(" ")));
      why.addEventListener("toggle", () => why.open && why.scrollIntoView({ block: "nearest" }));
      this.item.append(why);
    } catch {
      // the answer is complete without it
    }
  }
}

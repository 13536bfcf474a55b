// Talking to the server: JSON, and server-sent events over fetch (EventSource cannot POST).

import { apiKey } from "./settings.js";

/** What the server answered instead of what was asked for; `status` 0: it could not be reached. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function send(path, options = {}) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!response.ok) throw new ApiError(await reason(response), response.status, response.headers.get("Retry-After"));
  return response;
}

async function reason(response) {
  const text = await response.text().catch(() => "");
  try {
    const message = JSON.parse(text).error?.message;
    if (typeof message === "string") return message;
  } catch {
    // not JSON: a proxy answered
  }
  return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
}

export async function getJson(path) {
  const response = await send(path);
  return response.json();
}

/** Post `body` and yield the JSON of each event until [DONE]; `onOpen` gets the request's id. Raises ApiError, also for an
 * error event. */
export async function* streamEvents(path, body, signal, onOpen) {
  const response = await send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  onOpen(response.headers.get("X-Request-Id"));
  let done = false;
  for await (const data of dataLines(response.body)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, response.status);
    yield event;
  }
  if (!done) throw new ApiError("The connection ended before the answer did.");
}

async function* dataLines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection was lost in the middle of the answer.");
      }
      if (part.done) return;
      const lines = (rest + part.value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

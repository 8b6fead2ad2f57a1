// Requests to the server: the key, error messages, and event streams.

import { askForKey, key } from "./key.js";

/** What went wrong, in words for people. `detail` is the server's own sentence. */
export class PageError extends Error {
  constructor(message, detail, status) {
    super(message);
    this.detail = detail;
    this.status = status;
  }
}

/** A response that is a success, or a `PageError`. A 401 asks for a key and retries. */
export async function call(path, options = {}, ask = true) {
  const response = await reach(path, options);
  if (response.ok) return response;
  if (response.status === 401 && ask && (await askForKey())) return call(path, options);
  throw await trouble(response);
}

export async function getJson(path, options, ask) {
  const response = await call(path, options, ask);
  return response.json();
}

async function reach(path, { headers, ...options }) {
  const known = key();
  const all = { ...headers, ...(known ? { authorization: `Bearer ${known}` } : {}) };
  try {
    return await fetch(path, { ...options, headers: all, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new PageError("The server cannot be reached. Is it still running?");
  }
}

const WORDS = {
  400: "The request was not accepted.",
  401: "The API key is not valid.",
  403: "The API key does not allow this.",
  404: "Model not found.",
  408: "The request timed out.",
  413: "The request is too large.",
  429: "Too many requests.",
  503: "The server is busy.",
};

async function trouble(response) {
  let detail;
  try {
    detail = (await response.json()).error?.message;
  } catch {
    // Another body has no useful message.
  }
  const wait = Number(response.headers.get("retry-after"));
  const when = wait > 0 ? ` Try again in ${wait} s.` : "";
  const words = WORDS[response.status] ?? "The server reported an error.";
  return new PageError(words + when, detail, response.status);
}

/** The JSON of each `data:` of a response, as it comes. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

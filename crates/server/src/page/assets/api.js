// Requests to the server: the key, error messages, and event streams.

import { askForKey, key } from "./key.js";

/** An error with a message for the user. `detail` is the server's own message. */
export class PageError extends Error {
  constructor(message, detail, status) {
    super(message);
    this.detail = detail;
    this.status = status;
  }
}

/** Returns a successful response, else throws a `PageError`. After a 401 it asks for a key and retries. */
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
    // The body is not JSON, so it has no message to show.
  }
  const wait = Number(response.headers.get("retry-after"));
  const when = wait > 0 ? ` Try again in ${wait} s.` : "";
  const words = WORDS[response.status] ?? "The server reported an error.";
  return new PageError(words + when, detail, response.status);
}

/** Yields the JSON of each `data:` line of a response as it arrives. */
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

// A streamed reply: sends the request, and adds each frame to the reply.

import { PageError, call, events } from "./api.js";
import { imagesOf, kindOf } from "./images.js";

/** The messages of a conversation in the format of `/v1/chat/completions`. */
export function wireMessages(system, messages) {
  const opening = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  return [...opening, ...messages.filter((message) => !message.failed).map(wireMessage)];
}

function wireMessage(message) {
  const { role, content, calls, callId } = message;
  if (role === "tool") return { role, tool_call_id: callId, content };
  if (role === "user") return { role, content: wireContent(content, imagesOf(message)) };
  if (!calls?.length) return { role, content };
  const toolCalls = calls.map((one) => ({
    id: one.id,
    type: "function",
    function: { name: one.name, arguments: one.arguments },
  }));
  return { role, content: content || null, tool_calls: toolCalls };
}

/** Images and videos come first: models are trained on that order. */
function wireContent(text, images) {
  if (!images.length) return text;
  const parts = images.map((image) => {
    const type = `${kindOf(image)}_url`;
    return { type, [type]: { url: image.url } };
  });
  return text ? [...parts, { type: "text", text }] : parts;
}

/** An empty reply, which `stream` fills. */
export const blank = (model) => ({
  role: "assistant",
  model,
  content: "",
  reasoning: "",
  calls: [],
  timing: {},
});

/**
 * Sends the request, and calls `changed` after each frame. Returns when the reply is complete. Throws
 * a `PageError`, or an `AbortError` if the signal was aborted.
 */
export async function stream(body, reply, signal, changed) {
  const began = performance.now();
  const since = () => performance.now() - began;
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const frame of events(response)) {
    if (frame.error) throw new PageError("The reply was interrupted.", frame.error.message);
    add(reply, frame, since());
    changed();
  }
  reply.timing.total = since();
  if (!reply.finish) throw new PageError("The reply was interrupted.", "the connection ended before the reply did");
}

function add(reply, frame, now) {
  if (frame.usage) reply.usage = frame.usage;
  const [choice] = frame.choices ?? [];
  if (!choice) return;
  const { content, reasoning_content: thought, reasoning, tool_calls: calls } = choice.delta ?? {};
  const thinking = thought ?? reasoning;
  const { timing } = reply;
  if (thinking || content || calls) {
    timing.first ??= now;
    timing.last = now;
  }
  if (thinking) reply.reasoning += thinking;
  if (reply.reasoning && timing.thought === undefined && (content?.trim() || calls))
    timing.thought = now - timing.first;
  if (content) reply.content += content;
  for (const call of calls ?? []) addCall(reply.calls, call);
  if (choice.finish_reason) reply.finish = choice.finish_reason;
}

function addCall(calls, { index, id, function: part }) {
  const call = (calls[index ?? 0] ??= { id: "", name: "", arguments: "" });
  call.id ||= id ?? "";
  call.name += part?.name ?? "";
  call.arguments += part?.arguments ?? "";
}

/** For example "31 tokens · 24.1 tokens/s · first after 0.21 s". Unknown values are left out. */
export function measured({ usage, timing = {}, finish }) {
  const parts = [];
  const tokens = usage?.completion_tokens;
  if (tokens !== undefined) parts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  const pace = (tokens - 1) / ((timing.last - timing.first) / 1000);
  if (tokens > 1 && Number.isFinite(pace)) parts.push(`${pace.toFixed(pace < 100 ? 1 : 0)} tokens/s`);
  if (timing.first !== undefined) parts.push(`first after ${seconds(timing.first)}`);
  if (timing.total !== undefined) parts.push(`${seconds(timing.total)} in all`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  if (finish === "length") parts.push("cut at the token limit");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

export function seconds(milliseconds) {
  const value = milliseconds / 1000;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

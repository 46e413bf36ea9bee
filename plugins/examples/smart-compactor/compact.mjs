// Pure: messages in, a CompactorResult out.

const textOf = (message) =>
  typeof message.content === "string" ? message.content : JSON.stringify(message.content ?? "");

/**
 * Fold old messages into one summary message and keep the rest.
 *
 * `remaining` are the messages that stay anyway; the host checks that all of them are still there.
 * A message is kept whole when it is among the newest `keepLast` or contains a marker word.
 */
export function compact(compacted, remaining, { keepLast, foldChars, markers }) {
  const words = markers.map((word) => word.trim().toLowerCase()).filter(Boolean);
  const kept = [];
  const folded = [];
  compacted.forEach((message, index) => {
    const text = textOf(message).toLowerCase();
    const isNew = compacted.length - index <= keepLast;
    if (isNew || words.some((word) => text.includes(word))) kept.push(message);
    else folded.push(message);
  });
  if (folded.length === 0) return null;
  const lines = folded.map((message) => {
    const flat = textOf(message).replace(/\s+/g, " ").trim();
    const short = flat.length > foldChars ? `${flat.slice(0, foldChars - 1)}…` : flat;
    return `- ${message.role}: ${short}`;
  });
  const summary = `Folded ${folded.length} of ${compacted.length} messages, kept ${kept.length} whole.`;
  return {
    role: "compactor",
    // What stays comes first in its own order: system prompt, first request, pinned messages.
    messages: [
      ...remaining,
      { role: "system", content: `Earlier in this conversation, shortened:\n${lines.join("\n")}` },
      ...kept,
    ],
    superseded: folded.map((message) => message.id).filter((id) => typeof id === "string"),
    summary,
  };
}

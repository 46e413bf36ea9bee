// Lines of JSON: bytes in, messages out. Knows nothing of methods.

/** The longest line either side may write, without its line feed. */
export const LINE_LIMIT = 4 * 1024 * 1024;

const decoder = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();

/** Collects chunks and gives complete lines as bytes; a character split over two chunks is safe. */
export class LineSplitter {
  #parts = [];
  #size = 0;

  /** Take one chunk (Uint8Array) and give the lines it completed. Throws past the limit. */
  feed(chunk) {
    const lines = [];
    let start = 0;
    for (;;) {
      const end = chunk.indexOf(0x0a, start);
      if (end < 0) break;
      lines.push(this.#take(chunk.subarray(start, end)));
      start = end + 1;
    }
    if (start < chunk.length) {
      // Copy: the runtime may reuse the chunk's memory.
      this.#parts.push(chunk.slice(start));
      this.#size += chunk.length - start;
      this.#check();
    }
    return lines;
  }

  #take(tail) {
    this.#size += tail.length;
    this.#check();
    const line = new Uint8Array(this.#size);
    let at = 0;
    for (const part of [...this.#parts, tail]) {
      line.set(part, at);
      at += part.length;
    }
    this.#parts = [];
    this.#size = 0;
    return line;
  }

  #check() {
    if (this.#size > LINE_LIMIT) throw new RangeError(`a line is longer than ${LINE_LIMIT} bytes`);
  }
}

/** Decode one line. Throws on anything that is not UTF-8 JSON. */
export function decodeLine(bytes) {
  return JSON.parse(decoder.decode(bytes));
}

/** Encode one message as a line. Throws for bytes, bigint, functions' absence aside, and oversize. */
export function encodeLine(message) {
  const text = JSON.stringify(message, refuseBytes);
  const size = encoder.encode(text).length;
  if (size > LINE_LIMIT) {
    throw new RangeError(`the message has ${size} bytes; a line may have ${LINE_LIMIT}`);
  }
  return text + "\n";
}

/** Text form of binary data for use inside JSON; raw bytes never go on the wire. */
export function base64(bytes) {
  return Buffer.from(bytes).toString("base64");
}

function refuseBytes(key, value) {
  // Buffer has toJSON, so look at what stood there before it was converted.
  const raw = this[key];
  if (raw instanceof Uint8Array || raw instanceof ArrayBuffer) {
    throw new TypeError(`${key || "the result"} is binary; send base64(bytes) instead`);
  }
  return value;
}

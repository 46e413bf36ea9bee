// Runs beside a debugged program, in the same cage, under the same runtime (Node or Bun). It starts
// the program with its inspector open on a loopback that nobody outside can reach, and carries the
// inspector's messages over its own standard streams, framed as the Debug Adapter Protocol is.
//
//   request launch    {argv, cwd, env}      start this runtime with these arguments; answers once the
//                                           inspector is joined
//   request attach    {host, port}          join the inspector of a program that runs already
//   request inspector {method, params}      ask the inspector; answers what it answers
//   request hangup                          leave the inspector
//   event   inspector {method, params}      what the inspector tells by itself
//   event   output    {category, output}    what the program printed
//   event   gone                            the inspector's connection ended
//   event   exited    {exitCode}            the program ended
"use strict";
const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const http = require("node:http");
const net = require("node:net");
const { StringDecoder } = require("node:string_decoder");

const MAX_MESSAGE = 512 * 1024 * 1024;
const BIG_MESSAGE = 256 * 1024;
const MAX_TEXT = 8192;
const MAX_LIST = 5000;
const MAX_LINE = 8192;
const DRAIN_MS = 500;
const JOIN_MS = 20000;
const NOISE =
  /^(Debugger (listening on|attached|ending on)|For help, see: https:\/\/nodejs\.org|Waiting for the debugger to disconnect)/;
const URL_LINE = /\b(ws:\/\/127\.0\.0\.1:\d+\/\S+)/;

// -- towards the daemon ---------------------------------------------------------------------------

let seq = 0;
function send(message) {
  const body = Buffer.from(JSON.stringify({ seq: ++seq, ...message }));
  process.stdout.write(Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]));
}
const event = (name, body = {}) => send({ type: "event", event: name, body });
const respond = (request, body) =>
  send({ type: "response", request_seq: request.seq, command: request.command, success: true, body });
const refuse = (request, message) =>
  send({ type: "response", request_seq: request.seq, command: request.command, success: false, message });

let input = Buffer.alloc(0);
process.stdin.on("data", (data) => {
  input = Buffer.concat([input, data]);
  for (;;) {
    const end = input.indexOf("\r\n\r\n");
    if (end < 0) return;
    const length = Number(/content-length: *(\d+)/i.exec(input.toString("latin1", 0, end))?.[1]);
    if (!(length <= MAX_MESSAGE)) return leave(1);
    if (input.length < end + 4 + length) return;
    const body = input.subarray(end + 4, end + 4 + length);
    input = input.subarray(end + 4 + length);
    handle(JSON.parse(body.toString("utf8")));
  }
});
process.stdin.on("end", () => leave(0));

function handle(message) {
  if (message.type !== "request") return;
  const given = message.arguments ?? {};
  const actions = {
    launch: () => launch(given).then(() => respond(message, {}), (error) => refuse(message, error.message)),
    attach: () => attach(given).then(() => respond(message, {}), (error) => refuse(message, error.message)),
    inspector: () => ask(message, given),
    hangup: () => {
      socket?.destroy();
      respond(message, {});
    },
  };
  (actions[message.command] ?? (() => refuse(message, "unknown")))();
}

// -- the program ----------------------------------------------------------------------------------

let child = null;

function leave(code) {
  child?.kill("SIGKILL"); // what it has started is in our process group, which the daemon ends
  process.exit(code);
}

function launch({ argv, cwd, env }) {
  const token = randomBytes(16).toString("hex");
  const rest = argv.map((one) => (one.startsWith("--inspect") ? one.replace("{token}", token) : one));
  return new Promise((resolve, reject) => {
    child = spawn(process.execPath, rest, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    child.on("error", (error) => reject(new Error(`the program did not start: ${error.message}`)));
    const said = [];
    const url = (found) => join(found).then(resolve, reject);
    const streams = [listen(child.stdout, "stdout", null), listen(child.stderr, "stderr", url, said)];
    child.on("exit", (code, signal) => {
      // Children of the program may hold its streams open for ever.
      Promise.race([Promise.all(streams), new Promise((done) => setTimeout(done, DRAIN_MS))]).then(() => {
        reject(new Error(`the program ended at once: ${said.join("\n").slice(-2000)}`));
        event("exited", { exitCode: code ?? 128 + (require("node:os").constants.signals[signal] ?? 0) });
      });
    });
    setTimeout(() => reject(new Error("the program did not open its inspector")), JOIN_MS).unref();
  });
}

// Passes output on. While `onUrl` waits for the inspector's address, lines are the runtime's own.
function listen(stream, category, onUrl, said) {
  const decoder = new StringDecoder("utf8");
  let pending = "";
  const line = (text) => {
    if (onUrl !== null) {
      const found = URL_LINE.exec(text);
      if (found !== null) {
        const call = onUrl;
        onUrl = null;
        banner = !text.startsWith("Debugger"); // Bun's goes on until a line of dashes
        return call(found[1]);
      }
      said.push(text);
      if (said.length > 50) said.shift();
      return;
    }
    if (banner) {
      banner = !text.startsWith("-----");
      return;
    }
    if (!NOISE.test(text)) event("output", { category, output: text });
  };
  let banner = false;
  return new Promise((done) => {
    stream.on("data", (data) => {
      pending += decoder.write(data);
      if (category === "stdout") {
        if (pending) event("output", { category, output: pending });
        pending = "";
        return;
      }
      for (let end = pending.indexOf("\n"); end >= 0; end = pending.indexOf("\n")) {
        line(pending.slice(0, end + 1));
        pending = pending.slice(end + 1);
      }
      if (pending.length > MAX_LINE) {
        line(pending);
        pending = "";
      }
    });
    stream.on("close", () => {
      if (pending) line(pending);
      done();
    });
  });
}

// -- the inspector --------------------------------------------------------------------------------

let socket = null;
let lastId = 0;
const open = new Map();

function attach({ host, port }) {
  return new Promise((resolve, reject) => {
    const asking = http.get({ host, port, path: "/json/list", timeout: 5000 }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (part) => {
        text += part;
        if (text.length > 1024 * 1024) asking.destroy(new Error("it talks too much"));
      });
      answer.on("end", () => {
        try {
          const path = new URL(JSON.parse(text)[0].webSocketDebuggerUrl).pathname;
          join(`ws://${host}:${port}${path}`).then(resolve, reject);
        } catch {
          reject(new Error(`what listens on ${host}:${port} is not an inspector`));
        }
      });
    });
    asking.on("timeout", () => asking.destroy(new Error("no answer")));
    asking.on("error", (error) => reject(new Error(`cannot reach ${host}:${port}: ${error.message}`)));
  });
}

function join(address) {
  const { hostname, port, pathname } = new URL(address);
  return new Promise((resolve, reject) => {
    const connection = net.connect(Number(port), hostname);
    let data = Buffer.alloc(0);
    let joined = false;
    connection.setNoDelay(true);
    connection.on("connect", () => {
      const key = randomBytes(16).toString("base64");
      connection.write(
        `GET ${pathname} HTTP/1.1\r\nHost: ${hostname}:${port}\r\nUpgrade: websocket\r\n` +
          `Connection: Upgrade\r\nSec-WebSocket-Key: ${key}\r\nSec-WebSocket-Version: 13\r\nRef-Event-Loop: 0\r\n\r\n`,
      );
    });
    connection.on("data", (part) => {
      data = data.length === 0 ? part : Buffer.concat([data, part]);
      if (!joined) {
        const end = data.indexOf("\r\n\r\n");
        if (end < 0) return;
        if (!/^HTTP\/1\.1 101 /.test(data.toString("latin1", 0, end))) {
          connection.destroy();
          return reject(new Error("the inspector refused the connection"));
        }
        data = data.subarray(end + 4);
        joined = true;
        socket = connection;
        resolve();
      }
      data = frames(data);
      if (data.length > MAX_MESSAGE) connection.destroy();
    });
    connection.on("error", (error) => reject(new Error(`the inspector: ${error.message}`)));
    connection.on("close", () => {
      reject(new Error("the inspector hung up"));
      if (socket !== connection) return;
      socket = null;
      event("gone");
      // A program that was let go on may end before its inspector says so: it did go on.
      for (const request of open.values())
        if (GOING_ON.test(request.arguments?.method ?? "")) respond(request, {});
        else refuse(request, "the program's inspector is gone");
      open.clear();
    });
  });
}

let parts = [];
function frames(data) {
  for (;;) {
    if (data.length < 2) return data;
    let size = data[1] & 127;
    let start = 2;
    if (size === 126) {
      if (data.length < 4) return data;
      size = data.readUInt16BE(2);
      start = 4;
    } else if (size === 127) {
      if (data.length < 10) return data;
      size = Number(data.readBigUInt64BE(2));
      start = 10;
    }
    if (size > MAX_MESSAGE) return socket.destroy(), Buffer.alloc(0);
    if (data.length < start + size) return data;
    const body = data.subarray(start, start + size);
    const kind = data[0] & 15;
    if (kind <= 2) parts.push(body);
    if (kind === 9) socket.write(frame(10, body));
    if (kind === 8) socket.destroy();
    if (kind <= 2 && data[0] & 128) {
      const whole = Buffer.concat(parts);
      parts = [];
      heard(whole);
    }
    data = data.subarray(start + size);
  }
}

function frame(kind, body) {
  const mask = randomBytes(4);
  const head =
    body.length < 126
      ? Buffer.from([128 | kind, 128 | body.length])
      : body.length < 65536
        ? Buffer.from([128 | kind, 128 | 126, body.length >> 8, body.length & 255])
        : Buffer.concat([Buffer.from([128 | kind, 128 | 127]), sized(body.length)]);
  const masked = Buffer.from(body);
  for (let i = 0; i < masked.length; i++) masked[i] ^= mask[i & 3];
  return Buffer.concat([head, mask, masked]);
}

function sized(length) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(length));
  return bytes;
}

// A value may be as large as the program's memory; nobody reads it whole.
function trimmed(value) {
  if (typeof value === "string") return value.length > MAX_TEXT ? value.slice(0, MAX_TEXT) + "…" : value;
  if (Array.isArray(value)) return value.slice(0, MAX_LIST).map(trimmed);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, trimmed(one)]));
}

function heard(body) {
  let message;
  try {
    message = JSON.parse(body.toString("utf8"));
    if (body.length > BIG_MESSAGE && message.id !== undefined) message = trimmed(message);
  } catch {
    return;
  }
  if (message.id === undefined) {
    if (typeof message.method === "string")
      event("inspector", { method: message.method, params: message.params ?? {} });
    return;
  }
  const request = open.get(message.id);
  open.delete(message.id);
  if (request === undefined) return;
  if (message.error) refuse(request, String(message.error.message ?? "refused"));
  else respond(request, message.result ?? {});
}

const GOING_ON = /^Debugger\.(resume|step\w+|continue\w*)$/;

function ask(request, { method, params }) {
  if (socket === null) return refuse(request, "the program's inspector is gone");
  open.set(++lastId, request);
  socket.write(frame(1, Buffer.from(JSON.stringify({ id: lastId, method, params }))));
}

// createPlugin: one plugin's conversation with the host, from initialize to shutdown.
import { ConfigInvalid, ErrorCode, PluginError, RpcError } from "./errors.js";
import { LineSplitter, decodeLine, encodeLine } from "./wire.js";

/** The plugin API version this SDK speaks. */
export const API_VERSION = 1;

const HOOK = "kaged.hook.";
const LEVELS = { debug: 10, info: 20, warn: 30, error: 40 };

/** Describe a plugin; nothing happens until start(). See index.d.ts for the options. */
export function createPlugin(options) {
  return new Plugin(options);
}

class Plugin {
  #name;
  #version;
  #handlers = new Map();
  #options;
  #state = "new"; // new → greeted (initialize answered) → ready (initialized seen) → stopping
  #nextId = 1;
  #waiting = new Map();
  #held = [];
  #running = new Map();
  #write;

  constructor(options) {
    const { name, version, methods = {}, tools = {}, hooks = {} } = options;
    if (typeof name !== "string" || typeof version !== "string") {
      throw new TypeError("createPlugin needs name and version, as the manifest has them");
    }
    this.#name = name;
    this.#version = version;
    this.#options = options;
    for (const [key, handler] of Object.entries(methods)) this.#add(key, handler);
    for (const [key, handler] of Object.entries(tools)) this.#add(`${name}.${key}`, handler);
    for (const [key, handler] of Object.entries(hooks)) this.#add(HOOK + key, handler);

    /** SQL on the plugin's own tables; needs a kaged:storage capability in the manifest. */
    this.storage = Object.freeze({
      query: (sql, params = []) => this.#request("kaged.storage.query", { sql, params }),
      exec: (sql, params = []) => this.#request("kaged.storage.exec", { sql, params }),
      schema: () => this.#request("kaged.storage.schema", {}),
      begin: () => this.#begin(),
      transaction: (work) => this.#transaction(work),
      batch: (statements) => this.#batch(statements),
    });

    /** Structured log lines on stderr, never on stdout. */
    this.log = Object.freeze(
      Object.fromEntries(
        Object.keys(LEVELS).map((level) => [level, (msg, fields) => this.#log(level, msg, fields)]),
      ),
    );
  }

  /** Connect to stdin and stdout and answer until the host says shutdown. */
  start() {
    if (this.#write) throw new Error("the plugin was started already");
    this.#write = claimStdout();
    const lines = new LineSplitter();
    process.stdin.on("data", (chunk) => {
      let complete;
      try {
        complete = lines.feed(chunk);
      } catch (error) {
        this.log.error("sdk.line_oversize", { error: error.message });
        process.exit(1);
      }
      for (const line of complete) if (line.length > 0) this.#line(line);
    });
    process.stdin.on("end", () => this.#stop("the host closed stdin"));
    return this;
  }

  /** Push a notification to the host. Held until the handshake is complete, then sent in order. */
  notify(type, params = {}) {
    this.#send({ jsonrpc: "2.0", method: type, params });
  }

  #add(method, handler) {
    if (typeof handler !== "function") throw new TypeError(`the handler of ${method} is no function`);
    if (this.#handlers.has(method)) throw new TypeError(`${method} has two handlers`);
    this.#handlers.set(method, handler);
  }

  #line(bytes) {
    let message;
    try {
      message = decodeLine(bytes);
    } catch {
      return this.#fail(null, ErrorCode.PARSE_ERROR, "Parse error: the line is not UTF-8 JSON");
    }
    if (Array.isArray(message)) {
      return this.#fail(null, ErrorCode.INVALID_REQUEST, "Invalid request: batches are forbidden");
    }
    const isObject = message !== null && typeof message === "object";
    if (isObject && message.method === undefined && ("result" in message || "error" in message)) {
      return this.#response(message);
    }
    const id = isObject && validId(message.id) ? message.id : undefined;
    if (!isObject || message.jsonrpc !== "2.0" || typeof message.method !== "string") {
      return this.#fail(id ?? null, ErrorCode.INVALID_REQUEST, "Invalid request: not JSON-RPC 2.0");
    }
    if (message.id !== undefined && id === undefined) {
      return this.#fail(null, ErrorCode.INVALID_REQUEST, "Invalid request: id is no integer or text");
    }
    void this.#dispatch(id, message.method, message.params ?? {});
  }

  #response(message) {
    const open = this.#waiting.get(message.id);
    if (!open) {
      // Never answered: two sides rejecting each other's messages must not loop.
      this.log.warn("sdk.response_ignored", { id: message.id ?? null });
      return;
    }
    this.#waiting.delete(message.id);
    if (message.error) open.reject(new RpcError(message.error));
    else open.resolve(message.result ?? null);
  }

  async #dispatch(id, method, params) {
    try {
      const result = await this.#handle(id, method, params);
      if (id !== undefined && result !== DONE) this.#answer(id, result ?? null);
    } catch (error) {
      if (id === undefined) {
        this.log.error("sdk.call_failed", { method, error: String(error?.message ?? error) });
      } else if (error instanceof PluginError) {
        this.#fail(id, error.code, error.message, error.data);
      } else {
        this.log.error("sdk.handler_raised", { method, error: String(error?.stack ?? error) });
        this.#fail(id, ErrorCode.INTERNAL_ERROR, `Internal error: ${error?.message ?? error}`);
      }
    }
    // After the answer is on the wire: only then may held messages follow it.
    if (method === "initialized") this.#release();
  }

  #handle(id, method, params) {
    if (method === "initialize") return this.#initialize(id, params);
    if (method === "initialized") return void (this.#state = "ready");
    if (method === "shutdown") return this.#stop("shutdown");
    if (method === "config.update") return this.#config(params);
    if (method === "kaged.cancel") return this.#cancel(params);
    if (this.#state !== "ready") {
      throw new PluginError("not initialized yet", { code: ErrorCode.NOT_INITIALIZED });
    }
    if (method === "ping") return { status: "ok" };
    if (method === "projects.activated") return this.#options.onProjectActivated?.(params);
    if (method === "projects.deactivated") return this.#options.onProjectDeactivated?.(params);
    if (method === "system.rate_limited") return this.log.warn("sdk.notifications_dropped");
    const handler = this.#handlers.get(method);
    if (!handler) {
      if (id === undefined) return undefined;
      throw new PluginError(`Method not found: ${method}`, { code: ErrorCode.METHOD_NOT_FOUND });
    }
    return this.#call(id, handler, params);
  }

  #initialize(id, params) {
    if (id === undefined || this.#state !== "new") {
      throw new PluginError("initialize comes once, as a request", {
        code: ErrorCode.INVALID_REQUEST,
      });
    }
    if (params.plugin_name !== this.#name) {
      throw new PluginError(`loaded as ${params.plugin_name}, but this plugin is ${this.#name}`, {
        code: ErrorCode.INVALID_PARAMS,
      });
    }
    if (params.api_version !== API_VERSION) {
      throw new PluginError(
        `the host speaks plugin API ${params.api_version}, this SDK speaks ${API_VERSION}`,
        { code: ErrorCode.INVALID_PARAMS },
      );
    }
    this.#state = "greeted";
    return {
      name: this.#name,
      version: this.#version,
      api_version: API_VERSION,
      // Tools may stand among the methods; hooks are the host's own names.
      methods: [...this.#handlers.keys()].filter((key) => !key.startsWith(HOOK)),
      notifications: [...(this.#options.notifications ?? [])],
      capabilities_used: [...(this.#options.capabilitiesUsed ?? [])],
    };
  }

  async #config(params) {
    const config = params.config !== undefined && isPlain(params.config) ? params.config : params;
    try {
      await this.#options.onConfigUpdate?.(config);
    } catch (error) {
      if (error instanceof PluginError) throw error;
      throw new ConfigInvalid(String(error?.message ?? error));
    }
    return {};
  }

  async #call(id, handler, params) {
    const { _context, _config, ...own } = isPlain(params) ? params : { value: params };
    const abort = new AbortController();
    if (id !== undefined) this.#running.set(id, abort);
    try {
      return await handler(own, contextOf(_context), { config: _config, signal: abort.signal });
    } finally {
      this.#running.delete(id);
    }
  }

  #cancel(params) {
    this.#running.get(params.id ?? params.request_id)?.abort();
  }

  async #stop(why) {
    if (this.#state === "stopping") return DONE;
    this.#state = "stopping";
    let code = 0;
    try {
      await this.#options.onShutdown?.();
    } catch (error) {
      this.log.error("sdk.shutdown_handler_raised", { error: String(error?.stack ?? error), why });
      code = 1;
    }
    // An empty write calls back when everything before it has left the process.
    this.#write("", () => process.exit(code));
    return DONE;
  }

  #request(method, params) {
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      try {
        this.#send({ jsonrpc: "2.0", id, method, params });
      } catch (error) {
        this.#waiting.delete(id);
        reject(error);
      }
    });
  }

  async #begin() {
    const { transaction } = await this.#request("kaged.storage.begin", {});
    return Object.freeze({
      id: transaction,
      exec: (sql, params = []) =>
        this.#request("kaged.storage.exec", { sql, params, transaction }),
      commit: () => this.#request("kaged.storage.commit", { transaction }),
      rollback: () => this.#request("kaged.storage.rollback", { transaction }),
    });
  }

  async #transaction(work) {
    const together = await this.#begin();
    let result;
    try {
      result = await work(together);
    } catch (error) {
      await together.rollback().catch(() => {}); // the first error is the one to tell
      throw error;
    }
    await together.commit();
    return result;
  }

  async #batch(statements) {
    const together = await this.#begin();
    try {
      for (const [sql, params = []] of statements) await together.exec(sql, params);
    } catch (error) {
      await together.rollback().catch(() => {}); // the first error is the one to tell
      throw error;
    }
    return together.commit();
  }

  #send(message) {
    const line = encodeLine(message);
    if (this.#state === "ready" || this.#state === "stopping") this.#write(line);
    else this.#held.push(line);
  }

  #release() {
    for (const line of this.#held.splice(0)) this.#write(line);
  }

  #answer(id, result) {
    let line;
    try {
      line = encodeLine({ jsonrpc: "2.0", id, result });
    } catch (error) {
      return this.#fail(id, ErrorCode.INTERNAL_ERROR, `the result cannot be sent: ${error.message}`);
    }
    this.#write(line);
  }

  #fail(id, code, message, data) {
    const error = data === undefined ? { code, message } : { code, message, data };
    let line;
    try {
      line = encodeLine({ jsonrpc: "2.0", id, error });
    } catch {
      line = encodeLine({ jsonrpc: "2.0", id, error: { code, message: message.slice(0, 2000) } });
    }
    this.#write(line);
  }

  #log(level, msg, fields) {
    if (LEVELS[level] < (LEVELS[process.env.KAGED_LOG_LEVEL] ?? LEVELS.info)) return;
    let line;
    try {
      line = JSON.stringify({ level, msg: String(msg), ...fields });
    } catch {
      line = JSON.stringify({ level, msg: String(msg), fields: "[not JSON]" });
    }
    process.stderr.write(line + "\n");
  }
}

const DONE = Symbol("handled; no answer of its own");

function contextOf(raw) {
  const context = {
    operator_id: raw?.operator_id ?? null,
    project_id: raw?.project_id ?? null,
    agent_path: raw?.agent_path ?? null,
    session_id: raw?.session_id ?? null,
    request_id: raw?.request_id ?? null,
  };
  // Names of the first draft, kept for plugins written against it.
  Object.defineProperty(context, "user_id", { get: () => context.operator_id });
  Object.defineProperty(context, "project", { get: () => context.project_id });
  return Object.freeze(context);
}

function validId(id) {
  return Number.isSafeInteger(id) || typeof id === "string";
}

function isPlain(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Keep stdout for the protocol: stray prints of plugin code go to stderr from here on. */
function claimStdout() {
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr);
  for (const name of ["log", "info", "debug", "dir", "table", "group"]) {
    console[name] = (...args) => console.error(...args);
  }
  return write;
}

// The same bridge as bridge.py, without a library: node bridge.mjs
// HARBOUR_URL is the service, HARBOUR_STATE the folder in which tokens are kept.

import { createHash, createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { existsSync, readFileSync, renameSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

const SERVICE = process.env.HARBOUR_URL.replace(/\/+$/, "");
const STATE = process.env.HARBOUR_STATE;
const LEEWAY_S = 30;

class BridgeError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}
const invalid = (message) => new BridgeError("capability_invalid_input", message);
const notLinked = () => new BridgeError("capability_auth_required", "no such account is linked");
const denied = () => new BridgeError("capability_access_denied", "the token is not valid");

// -- who calls: the claims of a token that the host signed for this bridge -----------------------

function key() {
  const text = process.env.ASH_CONTEXT_TOKEN_SECRET;
  return Buffer.from(text, "base64url");
}

function claims(token, namespace) {
  const parts = typeof token === "string" ? token.split(".") : [];
  if (parts.length !== 3) throw denied();
  const wanted = createHmac("sha256", key()).update(`${parts[0]}.${parts[1]}`).digest();
  const given = Buffer.from(parts[2], "base64url");
  if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) throw denied();
  // The same bytes have one spelling only.
  if (given.toString("base64url") !== parts[2]) throw denied();
  let head, body;
  try {
    [head, body] = parts.slice(0, 2).map((one) => JSON.parse(Buffer.from(one, "base64url")));
  } catch {
    throw denied();
  }
  const now = Date.now() / 1000;
  const good =
    head.alg === "HS256" && head.typ === "ASH_CONTEXT" && head.ver === 1 &&
    body.aud === `bridge:${namespace}` && typeof body.sub === "string" && body.sub.trim() !== "" &&
    Number.isInteger(body.exp) && body.exp > now - LEEWAY_S &&
    Number.isInteger(body.iat) && body.iat <= now + LEEWAY_S;
  if (!good) throw denied();
  return body;
}

// -- the service ---------------------------------------------------------------------------------

async function ask(path, { form, token } = {}) {
  let answer;
  try {
    answer = await fetch(`${SERVICE}${path}`, {
      method: form ? "POST" : "GET",
      body: form ? new URLSearchParams(form) : undefined,
      headers: token ? { authorization: `Bearer ${token}` } : {},
      signal: AbortSignal.timeout(20_000),
    });
  } catch {
    throw new BridgeError("capability_backend_unavailable", "the harbour is away");
  }
  if (answer.status === 401) throw notLinked();
  if (answer.status === 403) throw new BridgeError("capability_access_denied", "the harbour denies this");
  if (answer.status === 400) throw invalid("the harbour does not accept this");
  if (!answer.ok) throw new BridgeError("capability_backend_unavailable", "the harbour failed");
  return answer.json();
}

// -- what the bridge keeps, apart for each person, capability and account ------------------------

function place(call, accountRef) {
  const name = JSON.stringify([call.user, call.params.capability_id, accountRef]);
  return join(STATE, `${createHash("sha256").update(name).digest("hex")}.json`);
}

function keep(file, tokens) {
  const beside = `${file}.${process.pid}`;
  writeFileSync(beside, JSON.stringify(tokens), { mode: 0o600 });
  renameSync(beside, file);
}

function link(call, tokens) {
  const accountRef = `acct_${call.params.account_hint || tokens.name}`;
  keep(place(call, accountRef), tokens);
  return { account_ref: accountRef, metadata: { account_name: tokens.name } };
}

async function listKept(call) {
  const file = place(call, call.params.account_ref);
  if (!existsSync(file)) throw notLinked();
  let tokens = JSON.parse(readFileSync(file, "utf8"));
  let found;
  try {
    found = await ask("/entries", { token: tokens.access_token });
  } catch (error) {
    if (error.code !== "capability_auth_required") throw error;
    // It is too old: renew it, once.
    const form = { grant_type: "refresh_token", refresh_token: tokens.refresh_token };
    tokens = await ask("/token", { form });
    keep(file, tokens);
    found = await ask("/entries", { token: tokens.access_token });
  }
  return { entries: found.entries.slice(0, call.params.input_data.limit) };
}

async function revokeKept(call) {
  const file = place(call, call.params.account_ref);
  if (!existsSync(file)) return {};
  const tokens = JSON.parse(readFileSync(file, "utf8"));
  unlinkSync(file);
  await ask("/revoke", { form: { token: tokens.refresh_token } });
  return {};
}

// -- three capabilities: a callback, polling, fields ---------------------------------------------

const CAPABILITIES = {
  "harbour.log": {
    description: "The log of the harbour.",
    auth_begin: async () => {
      const state = randomBytes(16).toString("hex");
      const query = new URLSearchParams({ state, response_type: "code" });
      return { auth_url: `${SERVICE}/agree?${query}`, expected_callback_state: state };
    },
    auth_complete: async (call) => {
      const form = { grant_type: "authorization_code", code: call.params.authorization_code ?? "" };
      return link(call, await ask("/token", { form }));
    },
    list: listKept,
    auth_revoke: revokeKept,
  },
  "harbour.crane": {
    description: "What the cranes do.",
    auth_begin: async () => {
      const begun = await ask("/device", { form: {} });
      return {
        auth_url: begun.verification_uri,
        flow_type: "device_code",
        user_code: begun.user_code,
        poll_interval_seconds: begun.interval,
        flow_state: { device_code: begun.device_code },
      };
    },
    auth_poll: async (call) => {
      const form = { grant_type: "device_code", device_code: call.params.flow_state.device_code };
      const found = await ask("/token", { form });
      if (found.error) return { status: "pending", retry_after_seconds: 1 };
      return { status: "complete", ...link(call, found) };
    },
    list: listKept,
    auth_revoke: revokeKept,
  },
  "harbour.locker": {
    description: "A person's locker.",
    auth_begin: async () => ({
      fields: [
        { name: "berth", label: "Berth" },
        { name: "pass", label: "Locker token", secret: true },
      ],
    }),
    auth_submit: async (call) => {
      const { berth, pass } = call.params.values;
      try {
        const found = await ask("/entries", { token: pass });
        return { account_ref: `acct_${berth || found.name}` };
      } catch (error) {
        if (error.code !== "capability_auth_required") throw error;
        throw invalid("The harbour does not know this token.");
      }
    },
    list: async (call) => {
      const pass = call.params.credentials?.pass;
      if (!pass) throw notLinked();
      const found = await ask("/entries", { token: pass });
      return { entries: found.entries.slice(0, call.params.input_data.limit) };
    },
    auth_revoke: async (call) => {
      await ask("/revoke", { form: { token: call.params.credentials?.pass ?? "" } });
      return {};
    },
  },
};

const LIST = {
  name: "list",
  description: "List the entries.",
  input_schema: { type: "object", properties: { limit: { type: "integer", minimum: 1 } } },
};
const METHODS = ["auth_begin", "auth_complete", "auth_poll", "auth_submit", "auth_revoke", "invoke"];

async function result(request) {
  const { method, params, namespace } = request;
  if (method === "definitions") {
    const definitions = Object.entries(CAPABILITIES).map(([id, one]) => ({
      id, description: one.description, sensitive: true, operations: [LIST],
    }));
    return { definitions, features: ["persistent"] };
  }
  if (!METHODS.includes(method)) throw invalid("unknown method");
  const user = claims(params.context_token, namespace).sub;
  const offered = Object.hasOwn(CAPABILITIES, params.capability_id) && CAPABILITIES[params.capability_id];
  if (!offered) throw invalid("there is no such capability here");
  if (method === "invoke" && params.operation !== "list") throw invalid("no such operation");
  const handler = offered[method === "invoke" ? "list" : method];
  if (!handler) throw invalid(`${params.capability_id} does not support ${method}`);
  const done = await handler({ user, params });
  return method === "invoke" ? { output: done } : done;
}

async function answer(line) {
  const request = JSON.parse(line);
  const head = { version: 1, id: request.id };
  try {
    return { ...head, result: await result(request) };
  } catch (error) {
    if (!(error instanceof BridgeError)) process.stderr.write(`${error.stack}\n`);
    const code = error instanceof BridgeError ? error.code : "capability_backend_unavailable";
    const message = error instanceof BridgeError ? error.message : "the bridge failed; its log has more";
    return { ...head, error: { code, message } };
  }
}

// Requests do not wait for one another: answers are matched by their id.
for await (const line of createInterface({ input: process.stdin })) {
  if (line.trim()) answer(line).then((one) => process.stdout.write(`${JSON.stringify(one)}\n`));
}

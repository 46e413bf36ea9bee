/** The plugin API version this SDK speaks. */
export const API_VERSION: 1;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** Who is asking. The first three ids are set together for calls of an agent, or all null. */
export interface PluginCallContext {
  readonly operator_id: string | null;
  readonly project_id: string | null;
  readonly agent_path: string | null;
  readonly session_id: string | null;
  readonly request_id: string;
  /** @deprecated use operator_id */
  readonly user_id: string | null;
  /** @deprecated use project_id */
  readonly project: string | null;
}

export interface CallExtras {
  /** The caller's effective config, only with `per_call_config: true` in the manifest. */
  readonly config?: JsonObject;
  /** Aborted when the host gave up on this call. */
  readonly signal: AbortSignal;
}

export type Handler<P = any, R = any> = (
  params: P,
  context: PluginCallContext,
  extras: CallExtras,
) => R | Promise<R>;

export interface Message {
  id?: string;
  role: string;
  content: Json;
}

export interface CompactorResult {
  role: "compactor";
  messages: Message[];
  superseded: string[];
  summary?: string;
}

export interface CompactParams {
  role: "observer" | "compactor";
  messages_being_compacted: Message[];
  messages_remaining: Message[];
  strategy: string;
  trigger: string;
}

export interface ObserverResult {
  inject?: string;
  retain?: string[];
}

export interface Hooks {
  on_session_start?: Handler<{}, { inject?: string } | null | void>;
  on_session_idle?: Handler<{ transcript: Message[] }, void>;
  pre_compact?: Handler<CompactParams, ObserverResult | CompactorResult | null | void>;
  post_compact?: Handler<CompactParams, ObserverResult | null | void>;
}

export interface PluginOptions {
  /** As in the manifest; the host refuses another name or version. */
  name: string;
  version: string;
  /** Plugin-declared methods by full name, e.g. "presets.list". */
  methods?: Record<string, Handler>;
  /** Tools by the manifest's (unprefixed) name, e.g. "retain". */
  tools?: Record<string, Handler>;
  hooks?: Hooks;
  notifications?: string[];
  /** Subset of the manifest's capabilities that is really used. */
  capabilitiesUsed?: string[];
  /** Throw ConfigInvalid to refuse. */
  onConfigUpdate?: (config: JsonObject) => void | Promise<void>;
  onProjectActivated?: (params: { project: string; config: JsonObject }) => void | Promise<void>;
  onProjectDeactivated?: (params: { project: string }) => void | Promise<void>;
  onShutdown?: () => void | Promise<void>;
}

export interface Storage {
  query(sql: string, params?: Json[]): Promise<{ rows: JsonObject[]; columns: string[] }>;
  exec(sql: string, params?: Json[]): Promise<{ rows_affected: number }>;
  schema(): Promise<{ tables: string[] }>;
  /** Open a transaction that is committed or rolled back by hand; one at a time per plugin. */
  begin(): Promise<Transaction>;
  /** Run `work`, then commit; roll back if it throws. Gives what `work` gave. */
  transaction<R>(work: (together: Transaction) => R | Promise<R>): Promise<R>;
  /** Run several changing statements together or not at all. */
  batch(statements: Iterable<[sql: string, params?: Json[]]>): Promise<Committed>;
}

/** What a commit did: the rows touched in all, and by each statement. */
export interface Committed {
  rows_affected: number;
  statements: number[];
}

/** Statements that the host runs together at commit; forgotten after five idle seconds. */
export interface Transaction {
  readonly id: string;
  exec(sql: string, params?: Json[]): Promise<{ rows_affected: 0; queued: number }>;
  commit(): Promise<Committed>;
  rollback(): Promise<JsonObject>;
}

export interface Log {
  debug(message: string, fields?: JsonObject): void;
  info(message: string, fields?: JsonObject): void;
  warn(message: string, fields?: JsonObject): void;
  error(message: string, fields?: JsonObject): void;
}

export interface Plugin {
  /** Connect stdin and stdout and answer until the host says shutdown. */
  start(): this;
  /** Push a notification; held until the handshake is complete, then sent in order. */
  notify(type: string, params?: JsonObject): void;
  readonly storage: Storage;
  readonly log: Log;
}

export function createPlugin(options: PluginOptions): Plugin;

/** Text form of binary data; raw bytes are refused on the wire. */
export function base64(bytes: Uint8Array | ArrayBuffer): string;

export const ErrorCode: {
  readonly PARSE_ERROR: -32700;
  readonly INVALID_REQUEST: -32600;
  readonly METHOD_NOT_FOUND: -32601;
  readonly INVALID_PARAMS: -32602;
  readonly INTERNAL_ERROR: -32603;
  readonly PLUGIN_ERROR: -32000;
  readonly CAPABILITY_DENIED: -32001;
  readonly NOT_INITIALIZED: -32002;
  readonly STORAGE_ACCESS_DENIED: -32003;
  readonly CONFIG_INVALID: -32004;
  readonly RESOURCE_BUSY: -32005;
  readonly NOT_APPLICABLE: -32006;
};

export class PluginError extends Error {
  constructor(message: string, options?: { code?: number; data?: Json });
  readonly code: number;
  readonly data?: Json;
}
export class InvalidParams extends PluginError {
  constructor(message: string, data?: Json);
}
export class ConfigInvalid extends PluginError {
  constructor(message: string, data?: Json);
}
export class ResourceBusy extends PluginError {
  constructor(message: string, data?: Json);
}
export class NotApplicable extends PluginError {
  constructor(message: string, data?: Json);
}
export class RpcError extends Error {
  readonly code: number;
  readonly data?: Json;
}

// Errors with a number on the wire. The twelve codes are the host's own table.

export const ErrorCode = Object.freeze({
  PARSE_ERROR: -32700,
  INVALID_REQUEST: -32600,
  METHOD_NOT_FOUND: -32601,
  INVALID_PARAMS: -32602,
  INTERNAL_ERROR: -32603,
  PLUGIN_ERROR: -32000,
  CAPABILITY_DENIED: -32001,
  NOT_INITIALIZED: -32002,
  STORAGE_ACCESS_DENIED: -32003,
  CONFIG_INVALID: -32004,
  RESOURCE_BUSY: -32005,
  NOT_APPLICABLE: -32006,
});

const STANDARD = new Set([-32700, -32600, -32601, -32602, -32603]);

/** Whether a plugin may answer with this code: a standard one, or one of -32099 to -32000. */
export function allowedCode(code) {
  return Number.isInteger(code) && (STANDARD.has(code) || (code >= -32099 && code <= -32000));
}

/** An error that the caller sees with its code, message and data. Default code: plugin_error. */
export class PluginError extends Error {
  constructor(message, { code = ErrorCode.PLUGIN_ERROR, data } = {}) {
    super(message);
    this.name = new.target.name;
    if (!allowedCode(code)) {
      throw new RangeError(
        `error code ${code} is reserved; use one of -32099 to -32000 or a standard JSON-RPC code`,
      );
    }
    this.code = code;
    this.data = data;
  }
}

/** The method exists, its parameters are wrong (-32602). */
export class InvalidParams extends PluginError {
  constructor(message, data) {
    super(message, { code: ErrorCode.INVALID_PARAMS, data });
  }
}

/** Throw from onConfigUpdate to refuse a configuration (-32004). */
export class ConfigInvalid extends PluginError {
  constructor(message, data) {
    super(message, { code: ErrorCode.CONFIG_INVALID, data });
  }
}

/** Busy right now; the client should retry (-32005). */
export class ResourceBusy extends PluginError {
  constructor(message, data) {
    super(message, { code: ErrorCode.RESOURCE_BUSY, data });
  }
}

/** The method exists but does not apply in this context (-32006). */
export class NotApplicable extends PluginError {
  constructor(message, data) {
    super(message, { code: ErrorCode.NOT_APPLICABLE, data });
  }
}

/** The host answered a request of ours with an error. */
export class RpcError extends Error {
  constructor({ code, message, data }) {
    super(message);
    this.name = "RpcError";
    this.code = code;
    this.data = data;
  }
}

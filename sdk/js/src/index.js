// @kaged/plugin-sdk: the nouns are createPlugin, PluginError (and its kinds) and ErrorCode.
export { createPlugin, API_VERSION } from "./plugin.js";
export {
  ConfigInvalid,
  ErrorCode,
  InvalidParams,
  NotApplicable,
  PluginError,
  ResourceBusy,
  RpcError,
} from "./errors.js";
export { base64 } from "./wire.js";

// smart-compactor: a compactor that needs no model and never stalls a session.
import { ConfigInvalid, InvalidParams, createPlugin } from "@kaged/plugin-sdk";
import { compact } from "./compact.mjs";

let settings = { keepLast: 6, foldChars: 160, markers: ["decision:", "important:", "must not", "error"] };

function run(params) {
  const { messages_being_compacted: compacted, messages_remaining: remaining } = params;
  if (!Array.isArray(compacted) || !Array.isArray(remaining)) {
    throw new InvalidParams("messages_being_compacted and messages_remaining must be lists");
  }
  return compact(compacted, remaining, settings);
}

const plugin = createPlugin({
  name: "smart-compactor",
  version: "0.1.0",
  methods: { "compactor.preview": run },
  hooks: {
    // Addressed as observer there is nothing to say; the host decides who is the compactor.
    pre_compact: (params) => (params.role === "compactor" ? run(params) : null),
  },
  onConfigUpdate: (config) => {
    const keepLast = config.keep_last ?? 6;
    if (!Number.isInteger(keepLast) || keepLast < 1) throw new ConfigInvalid("keep_last is below 1");
    settings = {
      keepLast,
      foldChars: config.fold_chars ?? 160,
      markers: (config.markers ?? "decision:\nimportant:\nmust not\nerror").split("\n"),
    };
  },
});

plugin.start();

// The plugin that every SDK's contract tests talk to, written with the JavaScript SDK.
import {
  ConfigInvalid,
  InvalidParams,
  PluginError,
  createPlugin,
} from "../../../sdk/js/src/index.js";

let open;
const gate = new Promise((resolve) => (open = resolve));

const say = (params, context) => ({
  params,
  agent_path: context.agent_path,
  operator: context.user_id,
});

const plugin = createPlugin({
  name: "sample",
  version: "1.2.3",
  methods: {
    "echo.say": say,
    "sample.wait": async (params) => {
      await gate;
      return { n: params.n };
    },
    "gate.open": () => open(),
    "fail.now": (params) => {
      if (params.kind === "domain") throw new PluginError("out of cheese", { data: { cheese: 0 } });
      if (params.kind === "own") throw new PluginError("mine", { code: -32050 });
      if (params.kind === "params") throw new InvalidParams("kind is wrong");
      if (params.kind === "reserved") throw new PluginError("not mine", { code: -32500 });
      throw new Error("a bug");
    },
    "print.noise": () => {
      console.log("this is not JSON");
      process.stdout.write("neither is this\n");
      return "printed";
    },
    "bytes.raw": () => Buffer.from([0, 1]),
    "store.all": async () => {
      const { rows_affected } = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"]);
      const { rows } = await plugin.storage.query("SELECT * FROM t");
      const { tables } = await plugin.storage.schema();
      return { touched: rows_affected, rows, tables };
    },
    "store.batch": (params) =>
      plugin.storage.batch([
        ["INSERT INTO t VALUES (?)", ["x"]],
        [params.second ?? "DELETE FROM t"],
      ]),
    "store.block": (params) =>
      plugin.storage.transaction(async (together) => {
        await together.exec("DELETE FROM t");
        if (params.fail) throw new PluginError("changed my mind");
      }),
    "wait.long": (params, context, { signal }) =>
      new Promise((resolve) => {
        signal.addEventListener("abort", () => {
          plugin.notify("catalog.updated", { cancelled: params.n });
          resolve(null);
        });
        plugin.notify("catalog.updated", { started: params.n });
      }),
  },
  notifications: ["catalog.updated"],
  tools: { retain: say },
  hooks: { on_session_start: (_, context) => ({ inject: `hello ${context.agent_path}` }) },
  onConfigUpdate: (config) => {
    if (config.bad) throw new ConfigInvalid("bad is set");
    if (config.buggy) throw new Error("buggy");
  },
  onShutdown: async () => plugin.log.info("flushed"),
});

plugin.start();
plugin.notify("catalog.updated", { entries_added: 3 });

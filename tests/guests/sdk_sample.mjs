// A plugin on the JavaScript SDK, for tests that install it; `sdk_sample.py` is its twin.
import { ConfigInvalid, PluginError, createPlugin } from "@kaged/plugin-sdk";

let open;
let waiting = 0;
const gate = new Promise((resolve) => (open = resolve));
const configs = [];

const say = (params, context, { config }) => ({
  params,
  context: {
    operator_id: context.operator_id,
    project_id: context.project_id,
    agent_path: context.agent_path,
    session_id: context.session_id,
    request_id: context.request_id,
  },
  user_id: context.user_id,
  config: config ?? null,
  configs,
});

const plugin = createPlugin({
  name: "sdk-sample",
  version: "1.0.0",
  methods: {
    "echo.say": say,
    "slow.wait": async (params) => {
      waiting += 1;
      await gate;
      return { n: params.n };
    },
    "slow.count": () => waiting,
    "gate.open": () => {
      open();
      return "open";
    },
    "fail.now": () => {
      throw new PluginError("out of cheese", { code: -32050, data: { cheese: 0 } });
    },
    "print.noise": () => {
      console.log("this is not JSON");
      plugin.log.info("an ordinary line", { shelf: 3 });
      return "printed";
    },
    "store.all": async () => {
      await plugin.storage.exec("CREATE TABLE IF NOT EXISTS t (a TEXT)");
      const { rows_affected } = await plugin.storage.exec("INSERT INTO t VALUES (?)", ["x"]);
      const { rows } = await plugin.storage.query("SELECT * FROM t");
      let denied = null;
      try {
        await plugin.storage.query("SELECT * FROM plugin_other_t");
      } catch (error) {
        denied = error.code;
      }
      const { tables } = await plugin.storage.schema();
      return { touched: rows_affected, rows, tables, denied };
    },
    "tell.all": (params) => {
      plugin.notify("catalog.updated", params);
      return "told";
    },
  },
  notifications: ["catalog.updated"],
  tools: { retain: say },
  hooks: { on_session_start: (_, context) => ({ inject: `hello ${context.agent_path}` }) },
  onConfigUpdate: (config) => {
    if (config.bad) throw new ConfigInvalid("bad is set");
    configs.push(config);
  },
  onShutdown: async () => plugin.log.info("flushed"),
});

plugin.start();
plugin.notify("catalog.updated", { entries_added: 3 });
plugin.storage
  .query("SELECT 1 AS one")
  .then(({ rows }) => plugin.log.info("asked early", { rows }));

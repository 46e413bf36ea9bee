// The plugin of the SDK's documentation, with the few helpers that it takes for granted.
import { createPlugin } from "@kaged/plugin-sdk";

let presetDir = "/opt/presets";
const all = ["web-server", "web-cache", "mail"];
const scanPresets = async (filter) => all.filter((name) => name.includes(filter ?? ""));
const search = (query) => all.filter((name) => name.startsWith(query));
const updatePresetDir = (dir) => (presetDir = dir);
const flushCache = async () => plugin.log.info("flushed", { dir: presetDir });

const plugin = createPlugin({
  name: "oh-my-pi",
  version: "1.4.2",
  methods: {
    "presets.list": async (params, context) => {
      const presets = await scanPresets(params.filter);
      plugin.log.info(`Scanned ${presets.length} presets`, { who: context.user_id });
      return { presets, dir: presetDir, params };
    },
    "presets.search": async (params, context) => {
      return { results: search(params.query) };
    },
    "preset.install": async (params, context) => {
      await plugin.storage.exec("CREATE TABLE IF NOT EXISTS presets (id TEXT, name TEXT)");
      await plugin.storage.exec("INSERT INTO presets (id, name) VALUES (?, ?)", ["p1", params.name]);
      plugin.notify("catalog.updated", { entries_added: 1 });
      return { installed: true };
    },
    "preset.uninstall": async (params, context) => {
      const { rows } = await plugin.storage.query("SELECT * FROM presets WHERE name LIKE ?", ["%web%"]);
      const { tables } = await plugin.storage.schema();
      return { rows, tables };
    },
  },
  notifications: ["catalog.updated"],
  onConfigUpdate: (newConfig) => {
    updatePresetDir(newConfig.preset_dir);
  },
  onShutdown: async () => {
    await flushCache();
  },
});

plugin.start();

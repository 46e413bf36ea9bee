"""Words that published plugins and programs import by name; most mean something to them only."""

from __future__ import annotations

NATIVE_PLUGIN_TYPE = "native"
BUILTIN_PLUGIN_TYPE = "builtin"
WASM_PLUGIN_TYPE = "wasm"
EXTERNAL_PLUGIN_TYPE = "external"
ISOLATED_VENV_PLUGIN_TYPE = "isolated_venv"
PDP_PLUGIN_TYPE = "PDP"
KNOWN_PLUGIN_KINDS = frozenset(
    {
        BUILTIN_PLUGIN_TYPE,
        EXTERNAL_PLUGIN_TYPE,
        ISOLATED_VENV_PLUGIN_TYPE,
        NATIVE_PLUGIN_TYPE,
        PDP_PLUGIN_TYPE,
        WASM_PLUGIN_TYPE,
    }
)
PYTHON_SUFFIX = ".py"
URL, SCRIPT, CMD, ENV, CWD, UDS = "url", "script", "cmd", "env", "cwd", "uds"
NAME, PLUGIN_NAME, PAYLOAD, CONTEXT = "name", "plugin_name", "payload", "context"
RESULT, ERROR, HOOK_TYPE = "result", "error", "hook_type"
IGNORE_CONFIG_EXTERNAL = "ignore_config_external"
TOOL_METADATA, GATEWAY_METADATA = "tool", "gateway"
MCP_SERVER_NAME = "MCP Plugin Server"
MCP_SERVER_INSTRUCTIONS = "External plugin server for ContextForge"
GET_PLUGIN_CONFIGS, GET_PLUGIN_CONFIG = "get_plugin_configs", "get_plugin_config"
INVOKE_HOOK = "invoke_hook"

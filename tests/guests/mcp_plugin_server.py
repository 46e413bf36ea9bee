"""A server of pipeline plugins, made with the official MCP SDK: what each does is in its name."""

import asyncio
import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("plugins")
calls = 0


@server.tool()
async def get_plugin_config(name: str) -> dict | None:
    if name == "unknown":
        return None
    return {"name": name, "kind": "theirs.Plugin", "hooks": ["tool_pre_invoke"]}


@server.tool()
async def invoke_hook(
    hook_type: str, plugin_name: str, payload: dict, context: dict, extensions: dict | None = None
) -> dict:
    global calls
    calls += 1
    result = {}
    if plugin_name == "edits":
        result["modified_payload"] = {**payload, "args": {**payload["args"], "n": [1]}}
        headers = (extensions.get("http") or {}).get("headers", {})
        result["modified_extensions"] = {
            **extensions,
            "http": {"headers": {**headers, "x-new": "1"}},
            "request": {"environment": "forged"},
            "custom": {"mine": calls},
        }
        result["metadata"] = {"saw": sorted(k for k, v in extensions.items() if v is not None)}
    elif plugin_name == "denies":
        result["continue_processing"] = False
        result["violation"] = {"reason": "no", "description": "really", "code": "NOPE"}
    elif plugin_name == "raises":
        raise ValueError("boom")
    elif plugin_name == "errs":
        return {"error": {"message": "its own error", "plugin_name": plugin_name}}
    elif plugin_name == "exits":
        os._exit(3)
    elif plugin_name == "hangs":
        await asyncio.Event().wait()
    elif plugin_name == "nonsense":
        return {"what": "is this"}
    elif plugin_name == "looks":
        reach = {}
        for path in ("/etc/shadow", "/srv", os.environ.get("SECRET_FILE", "/none")):
            try:
                reach[path] = bool(os.listdir(path) if os.path.isdir(path) else open(path).read())
            except OSError:
                reach[path] = False
        result["metadata"] = {"reach": reach, "pid": os.getpid()}
    else:
        result["metadata"] = {"calls": calls, "env": os.environ.get("GIVEN")}
    return {"result": result, "context": context}


server.run("stdio")

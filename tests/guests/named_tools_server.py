"""An MCP server on the standard library alone; its tools are its arguments, and say their names.

    named_tools_server.py getUser a/b
"""

import json
import sys

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def result(request):
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "named", "version": "1"},
        }
    if method == "tools/list":
        return {
            "tools": [
                {"name": name, "description": "Says its name.", "inputSchema": SCHEMA}
                for name in sys.argv[1:]
            ]
        }
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "called as " + params["name"]}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result(message)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

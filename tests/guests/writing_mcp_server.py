"""An MCP server on the standard library alone that writes the files it is told to."""

import json
import os
import sys

WRITE = {
    "name": "write",
    "description": "Writes a file.",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    },
}


def send(request, result):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


def write(path, text):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
    except OSError as error:
        return f"failed: {error.strerror}"
    return "written"


for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "writer", "version": "1"}
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        send(request, answer)
    elif method == "tools/list":
        send(request, {"tools": [WRITE]})
    elif method == "tools/call":
        said = write(**request["params"]["arguments"])
        send(request, {"content": [{"type": "text", "text": said}]})
    elif "id" in request:
        send(request, {})

"""An MCP server behind HTTP, made with the official SDK, that writes down what requests carry.

    python header_mcp_server.py JOURNAL

Prints its address as one line. Each call of a tool, prompt or resource becomes a line of JSON with
its headers and the `_meta` that came with it.
"""

import contextlib
import json
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("desk")
journal = sys.argv[1]


class Noting:
    """Writes the headers of each POST down with its message."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = bytearray()

        async def read():
            message = await receive()
            body.extend(message.get("body", b""))
            if not message.get("more_body") and body:
                headers = {k.decode(): v.decode() for k, v in scope["headers"]}
                with contextlib.suppress(ValueError), open(journal, "a", encoding="utf-8") as file:
                    said = json.loads(bytes(body))
                    file.write(json.dumps({"headers": headers, "message": said}) + "\n")
                body.clear()
            return message

        await self.app(scope, read, send)


@server.tool()
async def ping(ctx: Context) -> str:
    """Answer."""
    return "pong"


@server.prompt()
def explain(topic: str) -> str:
    """Ask for an explanation."""
    return f"Explain {topic}."


@server.resource("desk://one")
def one() -> str:
    """One."""
    return "1"


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
app = Noting(server.streamable_http_app())
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])

"""A server of tools, made with the official MCP SDK, as people write them."""

import os

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("calculator")


@server.tool(title="Sum", annotations=ToolAnnotations(readOnlyHint=True, openWorldHint=False))
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def count(upto: int, ctx: Context) -> str:
    """Count, and return how far it is."""
    for step in range(upto):
        await ctx.report_progress(step + 1, upto, f"at {step + 1}")
    return f"counted to {upto}"


@server.tool()
async def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
async def secrets() -> dict[str, str]:
    """Return what the environment holds."""
    return {name: value for name, value in os.environ.items() if name.startswith("CALC")}


@server.prompt()
def explain(topic: str) -> str:
    """Ask for an explanation."""
    return f"Explain {topic} in one sentence."


@server.resource("calc://constants/pi")
def pi() -> str:
    """The number."""
    return "3.14159"


server.run("stdio")

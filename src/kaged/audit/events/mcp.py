"""Events of MCP: clients of our agents, and outside servers."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

MCP = Chapter(
    "MCP",
    (
        event(
            "mcp.client_came",
            "An MCP client made its first request to an agent; its calls carry this session.",
            "session_id:str run_id:str transport:str client:cut",
            "via:str",
        ),
        event(
            "mcp.client_left",
            "An MCP client ended its stay, or was not heard of for long.",
            "session_id:str run_id:str transport:str",
        ),
        event(
            "mcp.resource_read",
            "An MCP client read a resource of an agent.",
            "session_id:str uri:cut success:bool",
            "error_code:str?",
        ),
        event(
            "mcp.prompt_fetched",
            "An MCP client fetched a prompt of an outside server.",
            "session_id:str server:str prompt:cut success:bool",
            "error_code:str?",
        ),
        event(
            "mcp.server_started",
            "An outside server runs and has listed its tools.",
            "server:str claims:cut protocol_version:str tools:list held_back:list",
        ),
        event("mcp.server_stopped", "An outside server was stopped.", "server:str"),
        event(
            "mcp.server_crashed",
            "An outside server ended unexpectedly, did not start, or was ended for what it did.",
            "server:str reason:cut last_stderr:tail",
        ),
        event(
            "mcp.server_failed",
            "An outside server was given up after too many failures.",
            "server:str reason:cut total_failures:int",
        ),
        event(
            "mcp.server_restarted",
            "The operator had an outside server restarted.",
            "server:str",
        ),
        event(
            "mcp.tools_approved",
            "Tools of an outside server were agreed to as they are, by first use or the operator.",
            "server:str tools:list how:str",
        ),
        event(
            "mcp.tool_changed",
            "A tool of an outside server is not what was agreed to; `offered` says if it is used.",
            "server:str tool:str what:str before:str after:str offered:bool",
        ),
        event(
            "mcp.answer_invalid",
            "An outside server answered with a result that does not match its schema.",
            "server:str tool:str reason:cut",
        ),
    ),
)

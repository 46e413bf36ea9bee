"""How debugging can fail, each with the next thing to do."""

from __future__ import annotations

from kaged.tools import ToolError


class DapSessionEnded(ToolError):
    """There is no debug session of this agent, or it has ended."""

    code = "dap_session_ended"


class DapRequestFailed(ToolError):
    """The adapter or the debugged program answered with an error; the session goes on."""

    code = "dap_request_failed"

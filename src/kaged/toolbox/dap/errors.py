"""How debugging can fail, each with the next thing to do."""

from __future__ import annotations

from typing import ClassVar

from kaged.tools import ToolError, ToolRefused


class DapSessionEnded(ToolError):
    """There is no debug session of this agent, or it has ended."""

    code: ClassVar[str] = "dap_session_ended"


class DapSessionActive(ToolError):
    """The agent has a debug session already; it goes on untouched."""

    code: ClassVar[str] = "dap_session_active"


class DapAdapterNotFound(ToolError):
    """No debug adapter for the runtime: none is configured, or it is not installed."""

    code: ClassVar[str] = "dap_adapter_not_found"


class DapRequiresRelaxedSeccomp(ToolRefused):
    """The debugger needs ptrace, which the caller's cage does not allow."""

    code: ClassVar[str] = "dap_requires_relaxed_seccomp"


class DapUnsupported(ToolError):
    """The adapter says that it cannot do this; nothing was sent to it."""

    code: ClassVar[str] = "dap_unsupported"


class DapNotStopped(ToolError):
    """The program runs; what was asked for can only be seen while it is stopped."""

    code: ClassVar[str] = "dap_not_stopped"


class DapRequestFailed(ToolError):
    """The adapter or the debugged program answered with an error; the session goes on."""

    code: ClassVar[str] = "dap_request_failed"

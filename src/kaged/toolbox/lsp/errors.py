"""How code intelligence can fail, each with the next thing to do."""

from __future__ import annotations

from typing import ClassVar, Self

from kaged.tools import ToolError, ToolRefused


class LspServerNotFound(ToolError):
    """No server for the file's language: none is configured, or its program is not installed."""

    code: ClassVar[str] = "lsp_server_not_found"

    @classmethod
    def unconfigured(cls, language: str) -> Self:
        """Return the error for a language without a server."""
        return cls(
            f"no language server is configured for {language}",
            fix=f"add [lsp.servers.{language}] with a command to config.toml",
            detail={"language": language, "command": None, "install": None},
        )


class LspServerUnavailable(ToolError):
    """The server died, cannot start, or has failed too often; the next call may work."""

    code: ClassVar[str] = "lsp_server_unavailable"


class LspTimeout(ToolError):
    """The server did not answer in time; it was ended and starts again at the next call."""

    code: ClassVar[str] = "lsp_timeout"


class LspRequestFailed(ToolError):
    """The server answered with an error of its own; `detail` has its number and words."""

    code: ClassVar[str] = "lsp_request_failed"


class RenameNotPossible(ToolError):
    """What is at this position cannot be renamed."""

    code: ClassVar[str] = "rename_not_possible"


class RenameScopeExceedsCage(ToolRefused):
    """The rename would change files that the caller may not write; nothing was changed."""

    code: ClassVar[str] = "rename_scope_exceeds_cage"

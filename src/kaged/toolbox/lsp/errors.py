"""How code intelligence can fail, each with the next thing to do."""

from __future__ import annotations

from typing import Self

from kaged.tools import ToolError


class LspServerNotFound(ToolError):
    """No server for the file's language: none is configured, or its program is not installed."""

    code = "lsp_server_not_found"

    @classmethod
    def unconfigured(cls, language: str) -> Self:
        """Return the error for a language without a server."""
        return cls(
            f"no language server is configured for {language}",
            fix=f"add [lsp.servers.{language}] with a command to config.toml",
            detail={"language": language, "command": None, "install": None},
        )


class LspRequestFailed(ToolError):
    """The server answered with an error of its own; `detail` has its number and words."""

    code = "lsp_request_failed"


class RenameNotPossible(ToolError):
    """What is at this position cannot be renamed."""

    code = "rename_not_possible"

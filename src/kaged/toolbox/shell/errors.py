"""How a shell command can fail to run at all; a command that runs and fails is a result."""

from __future__ import annotations

from kaged.tools import ToolError


class ShellSpawnFailed(ToolError):
    """The command could not be started; the message has the system's reason."""

    code = "shell_spawn_failed"

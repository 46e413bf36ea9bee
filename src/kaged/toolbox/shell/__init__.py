"""The shell: `shell.bash` runs one command on a terminal of the `PtyBroker`'s, caged as its caller.

bash (tool) → launch (caged or not, environment) → broker (terminal, scrollback) → orphan processes
"""

from kaged.toolbox.shell.background import BackgroundCommands
from kaged.toolbox.shell.bash import CommandRunner, shell_tools
from kaged.toolbox.shell.broker import PtyBroker
from kaged.toolbox.shell.interpreters import ShellSettings
from kaged.toolbox.shell.jobs import JobsTool
from kaged.toolbox.shell.launch import (
    Attach,
    Attachment,
    RunningSkill,
    ShellCommand,
    caged_launcher,
)

__all__ = [
    "Attach",
    "Attachment",
    "BackgroundCommands",
    "CommandRunner",
    "JobsTool",
    "PtyBroker",
    "RunningSkill",
    "ShellCommand",
    "ShellSettings",
    "caged_launcher",
    "shell_tools",
]

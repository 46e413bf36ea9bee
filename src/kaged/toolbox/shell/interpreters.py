"""`Interpreter`: what the shell hands a text to; `definition_of`: how models see such a tool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from kaged.toolbox.shell.scrollback import OUTPUT_LIMIT_BYTES
from kaged.tools import ToolDefinition
from kaged.tools.fields import closed, integer, text

ENV_LIMIT: Final = 64
TIMEOUT_MS: Final = 120_000
TIMEOUT_RANGE_MS: Final = (1_000, 600_000)
_MB: Final = 1024 * 1024

RETURNS: Final[JsonObject] = {
    **closed(
        {
            "stdout": {"type": "string"},
            "stderr": {"type": "string", "const": ""},
            "exit_code": {"type": "integer"},
            "timed_out": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "tail": {"type": "string"},
            "signal": {"type": "integer"},
            "handle": {"type": "string"},
        },
        ["stdout", "stderr"],
    ),
    # How it ended, or by what it is known while it runs in the background.
    "anyOf": [{"required": ["exit_code", "timed_out"]}, {"required": ["handle"]}],
}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a tool of the shell hands its text to. `argument` is the parameter that holds it."""

    tool_name: str
    argument: str
    means: str
    says: str
    program: tuple[str, ...]


SHELL: Final = Interpreter(
    "shell.bash",
    "command",
    "The command line, run as /bin/sh -c. At most 64 KB.",
    "Run a shell command (/bin/sh -c)",
    ("/bin/sh", "-c"),
)
MORE_INTERPRETERS: Final[Mapping[str, Interpreter]] = {
    "python": Interpreter(
        "shell.python",
        "code",
        "The Python program, run as python3 -c. At most 64 KB.",
        "Run a short Python program (python3 -c)",
        ("/bin/sh", "-c", 'exec python3 -c "$1"', "sh"),
    ),
    "node": Interpreter(
        "shell.node",
        "code",
        "The JavaScript program, run as node -e. At most 64 KB.",
        "Run a short JavaScript program (node -e)",
        ("/bin/sh", "-c", 'exec node -e "$1"', "sh"),
    ),
}
"""Further tools of the same kind, by the word that switches them on; off by default."""


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """What the operator sets.

    `scrub_env` are variables that uncaged commands do not see. `longest_ms` is the most time that a
    command can ask for. `interpreters` are keys of `MORE_INTERPRETERS`. `background_s` is how long
    a command in the background may run.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    scrub_env: tuple[str, ...] = ()
    longest_ms: int = TIMEOUT_RANGE_MS[1]
    output_bytes: int = OUTPUT_LIMIT_BYTES
    interpreters: tuple[str, ...] = ()
    background_s: float = 8 * 3600.0


def definition_of(one: Interpreter, settings: ShellSettings) -> ToolDefinition:
    """Return the definition of one tool of the shell, with the limits that hold."""
    size = settings.output_bytes
    shown = f"{size // _MB} MB" if size % _MB == 0 else f"{size // 1024} KB"
    parameters: JsonObject = closed(
        {
            one.argument: text(one.means, minLength=1),
            "cwd": text("Where it runs, relative to the project root.", default="./"),
            "timeout": integer(
                f"Milliseconds until it is ended, between {TIMEOUT_RANGE_MS[0]} and "
                f"{settings.longest_ms}; values beyond are taken as the nearest of the two.",
                default=min(TIMEOUT_MS, settings.longest_ms),
            ),
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": ENV_LIMIT,
                "default": {},
                "description": "Variables on top of those that are set anyway.",
            },
            "terminal": {
                "type": "boolean",
                "default": True,
                "description": "false: a pipe instead of a terminal, many times as fast. For "
                "megabytes of output.",
            },
            "background": {
                "type": "boolean",
                "default": False,
                "description": "true: do not wait for its end. Gives a `handle` at once, with "
                "which shell.jobs reads its output and stops it.",
            },
        },
        [one.argument],
    )
    return ToolDefinition(
        name=one.tool_name,
        namespace="shell",
        description=(
            f"{one.says} in the project and get its output and exit code. "
            "stdout holds both streams as a terminal shows them; stderr is always empty. A "
            "non-zero exit code is a result, not an error. Questions cannot be answered: standard "
            "input is empty. What a command starts ends with it; a server needs "
            "`background`. Output beyond "
            f"{shown} is cut; then `tail` has its last lines. Prefer file.*, edit.* and search.* "
            "for files."
        ),
        parameters=parameters,
        returns=RETURNS,
        requires=(FsRequirement(FsMode.RW), CapabilityRequirement("shell")),
    )


DEFINITION: Final = definition_of(SHELL, ShellSettings(environ={}))

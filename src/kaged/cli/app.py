"""The command tree, and `run`, which runs one command line."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kaged import __version__
from kaged.cli.context import URL_VARIABLE
from kaged.cli.conversion import Group
from kaged.cli.exits import Exit

_COMMANDS: Final = (
    "run", "chat", "acp", "answer", "status", "usage", "doctor", "backup", "restore", "schema",
    "completion", "man", "login", "logout",
)  # fmt: skip
"""Commands of the first level."""

_GROUPS: Final = (
    "daemon", "project", "issue", "todo", "workflow", "inbox", "session", "tool", "undo", "lsp",
    "lua", "model", "mcp", "plugin", "skill", "account", "people", "service-account", "capability",
    "credential",
    "bridge", "audit", "cage", "pipeline",
)  # fmt: skip
"""Groups of commands."""

_ELSEWHERE: Final = {
    "account": ("account_share", "accounts"),
    "capability": ("account", "capabilities"),
    "completion": ("man", "completions"),
    "logout": ("login", "logouts"),
    "restore": ("backup", "restores"),
    "service-account": ("service_account", "app"),
}
"""Module and name of what is not `app` in the module of its own name."""

_SHOWS_ALL: Final = "man"
"""The command that describes all others."""


def build(only: str | None = None) -> typer.Typer:
    """Build the command tree, or only the command or group of the first level that is used.

    Building all of it takes as long as most commands do. An unknown name builds everything, so that
    the error can suggest the right one.
    """
    app = typer.Typer(
        name="kaged",
        cls=Group,
        help="Tools, plugins and accounts for AI agents, without handing over the keys.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )

    @app.callback()
    def root(
        _version: Annotated[
            bool,
            typer.Option(
                "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
            ),
        ] = False,
        url: Annotated[
            str | None,
            typer.Option(
                "--url", help=f"Use the daemon at this URL, as {URL_VARIABLE} does; see `login`."
            ),
        ] = None,
    ) -> None:
        """Tools, plugins and accounts for AI agents, without handing over the keys."""
        if url:
            os.environ[URL_VARIABLE] = url

    wanted = (*_COMMANDS, *_GROUPS)
    if only in wanted and only != _SHOWS_ALL:
        wanted = (only,)
    for name in wanted:
        part = _load(name)
        if name in _GROUPS:
            app.add_typer(part, name=name)
        else:
            app.registered_commands += part.registered_commands
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        build(arguments[0] if arguments else None)(args=list(arguments), prog_name="kaged")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else Exit.ERROR
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.OK


def _load(name: str) -> typer.Typer:
    module, attribute = _ELSEWHERE.get(name, (name, "app"))
    return getattr(importlib.import_module(f"kaged.cli.commands.{module}"), attribute)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kaged {__version__}")
        raise typer.Exit

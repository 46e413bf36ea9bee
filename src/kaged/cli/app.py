"""The whole command line, put together: `run`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Annotated, Final

import typer

from kaged import __version__
from kaged.cli.exits import Exit

_COMMANDS: Final = ("run", "chat", "answer", "status", "doctor", "schema", "completion", "man")
"""Commands that stand alone, each in a module of its name that has `register`."""

_GROUPS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "daemon": ("daemon", "build"),
        "project": ("project", "build"),
        "issue": ("issue", "build"),
        "todo": ("todo", "build"),
        "workflow": ("workflow", "build"),
        "inbox": ("inbox", "build"),
        "session": ("session", "build"),
        "tool": ("tool", "build"),
        "undo": ("undo", "build"),
        "lsp": ("lsp", "build"),
        "lua": ("lua", "build"),
        "model": ("model", "build"),
        "mcp": ("mcp", "build"),
        "plugin": ("plugin", "build"),
        "account": ("account", "build"),
        "capability": ("account", "build_capability"),
        "bridge": ("bridge", "build"),
        "audit": ("audit", "build"),
        "cage": ("cage", "build"),
        "pipeline": ("pipeline", "build"),
    }
)
"""Groups of commands: the module that has them, and the function that builds them."""

_SHOWS_ALL: Final = "man"
"""The command that describes all others."""


def build(only: str | None = None) -> typer.Typer:
    """Build the command tree, or of its first level `only` the one that is going to be used.

    Building all of it takes as long as most commands do. A name that is none builds everything, so
    that the answer can suggest the right one.
    """
    app = typer.Typer(
        name="kaged",
        help="Tools, plugins and accounts for AI agents, without handing over the keys.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        _version: Annotated[
            bool,
            typer.Option(
                "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
            ),
        ] = False,
    ) -> None:
        """Tools, plugins and accounts for AI agents, without handing over the keys."""

    wanted = (*_COMMANDS, *_GROUPS)
    if only in wanted and only != _SHOWS_ALL:
        wanted = (only,)
    for name in wanted:
        if name in _GROUPS:
            module, function = _GROUPS[name]
            app.add_typer(getattr(_load(module), function)(), name=name)
        else:
            _load(name).register(app)
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


def _load(module: str) -> ModuleType:
    return importlib.import_module(f"kaged.cli.commands.{module}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kaged {__version__}")
        raise typer.Exit

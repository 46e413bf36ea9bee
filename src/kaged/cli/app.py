"""The whole command line, put together: `run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kaged import __version__
from kaged.cli.commands import (
    account,
    answer,
    audit,
    bridge,
    cage,
    chat,
    completion,
    daemon,
    doctor,
    inbox,
    issue,
    lsp,
    lua,
    man,
    mcp,
    model,
    pipeline,
    plugin,
    project,
    schema,
    session,
    status,
    todo,
    tool,
    undo,
    workflow,
)
from kaged.cli.commands import (
    run as run_task,
)
from kaged.cli.exits import Exit


def build() -> typer.Typer:
    """Build the command tree."""
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

    run_task.register(app)
    chat.register(app)
    answer.register(app)
    status.register(app)
    doctor.register(app)
    schema.register(app)
    completion.register(app)
    man.register(app)
    app.add_typer(daemon.build(), name="daemon")
    app.add_typer(project.build(), name="project")
    app.add_typer(issue.build(), name="issue")
    app.add_typer(todo.build(), name="todo")
    app.add_typer(workflow.build(), name="workflow")
    app.add_typer(inbox.build(), name="inbox")
    app.add_typer(session.build(), name="session")
    app.add_typer(tool.build(), name="tool")
    app.add_typer(undo.build(), name="undo")
    app.add_typer(lsp.build(), name="lsp")
    app.add_typer(lua.build(), name="lua")
    app.add_typer(model.build(), name="model")
    app.add_typer(mcp.build(), name="mcp")
    app.add_typer(plugin.build(), name="plugin")
    app.add_typer(account.build(), name="account")
    app.add_typer(account.build_capability(), name="capability")
    app.add_typer(bridge.build(), name="bridge")
    app.add_typer(audit.build(), name="audit")
    app.add_typer(cage.build(), name="cage")
    app.add_typer(pipeline.build(), name="pipeline")
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        build()(args=list(arguments), prog_name="kaged")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else Exit.ERROR
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kaged {__version__}")
        raise typer.Exit


__all__ = ["build", "run"]

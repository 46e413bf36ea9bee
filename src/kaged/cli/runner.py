"""One way to run a command: open the client, call, print JSON or a view, map errors to exit codes.

A command is its options, one call and one view:

    @project_command(app, "show", view=show_issue)
    def show(client: DaemonClient, number: Number) -> Any:
        '''Show an issue with its comments and changes.'''
        return client.get(f"/issues/{number}")

The runner adds `--json`, `--project` and `--no-start`. It passes `client` and `output` to functions
with parameters of these names.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kaged.base import KagedError
from kaged.cli.context import daemon, report
from kaged.cli.conversion import Command, Group
from kaged.cli.output import Output, View

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient
else:
    DaemonClient = Any  # for the signatures of commands; one that calls the daemon loads it

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and errors as JSON on stderr.")
]
InProject = Annotated[
    str, typer.Option("--project", "-p", help="The loaded project: its id, slug or folder.")
]
Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, max=200, help="Maximum number of rows.")
]
NoStart = Annotated[
    bool, typer.Option("--no-start", help="Do not start a daemon if none is running.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Read the files directly; do not ask the daemon.")
]
AgentPath = Annotated[
    str, typer.Option("--agent", "-a", help="The agent's path, such as primary.subagents.coder.")
]

Work = TypeVar("Work", bound=Callable[..., Any])

_GIVEN = ("client", "output")
_SHARED = {"project": (InProject, "."), "as_json": (AsJson, False), "no_start": (NoStart, False)}


def group(text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(cls=Group, help=text, no_args_is_help=True)


def find_project(client: DaemonClient, which: str) -> dict[str, Any]:
    """Return a loaded project by its id, slug or folder."""
    loaded = list(client.pages("/projects"))
    for one in loaded:
        if one["id"] == which:
            return one
    real = os.path.realpath(which)
    found = [one for one in loaded if one["root"] == real]
    found = found or [one for one in loaded if one["slug"] == which]
    if not found:
        folder = real if Path(real).is_dir() else "FOLDER"
        raise KagedError(
            f"No loaded project has the id, slug or folder {which!r}.",
            code="project_not_found",
            fix=f"Load it with `kaged project load {folder}`; `kaged project list` shows the rest.",
        )
    if len(found) > 1:
        raise KagedError(
            f"{len(found)} loaded projects have the slug {which!r}.",
            code="project_ambiguous",
            fix="Use the id of one of them: " + ", ".join(one["id"] for one in found) + ".",
        )
    return found[0]


def note_restricted(project: dict[str, Any], output: Output) -> None:
    """Note that a project is held to reading, and what shows why and lifts it."""
    if project["state"] != "failed" and not project["trusted"]:
        output.note(
            f"{project['slug']} is restricted to reading until you agree to what its files ask "
            f"for: `kaged project trust {project['slug']}`."
        )


@contextmanager
def in_project(which: str, *, start: bool = True) -> Generator[DaemonClient]:
    """Yield a client for a loaded project."""
    with daemon(start=start) as client:
        yield client.below(f"/projects/{find_project(client, which)['id']}")


def _daemon_client(options: dict[str, Any]) -> Any:
    return daemon(start=not options.pop("no_start", False))


def _project_client(options: dict[str, Any]) -> Any:
    return in_project(options.pop("project"), start=not options.pop("no_start", False))


def command(
    app: typer.Typer,
    name: str,
    view: View | str | None = None,
    *,
    text: str | None = None,
    json: bool = True,
    no_start: bool = False,
    runs_program: bool = False,
    opened: Callable[[dict[str, Any]], Any] | None = None,
) -> Callable[[Work], Work]:
    """Register a command that needs no client.

    What the function returns is printed as JSON with `--json` and by `view` without. A view that is
    a text is a template over the command's options and the result, `found`. Without a view the
    function prints for itself. `text` replaces the docstring as the command's help; `no_start`
    adds `--no-start`. With `runs_program` everything behind the first argument is that program's.
    """
    wanted = {"project": opened is _project_client, "as_json": json, "no_start": no_start}
    shared = tuple(option for option, is_wanted in wanted.items() if is_wanted)

    def register(work: Work) -> Work:
        own = inspect.signature(work).parameters
        takes_output = "output" in own

        @functools.wraps(work)
        def guarded(**options: Any) -> None:
            output = Output(as_json=options.pop("as_json", False))
            try:
                code = run(options, output)
            except Exception as error:  # noqa: BLE001  # boundary: command; every error has an exit
                code = report(error, output)
            if code:
                raise typer.Exit(code)

        def run(options: dict[str, Any], output: Output) -> int | None:
            given = {"output": output} if takes_output else {}
            if opened is None:
                found = work(**given, **options)
            else:
                with opened(options) as client:
                    found = work(client=client, **given, **options)
            if view is None:
                return None
            output.result(found)
            if isinstance(view, str):
                output.line(view.format(found=found, **options))
                return None
            return view(found, output)

        _set_signature(guarded, work, shared)
        settings = {"allow_interspersed_args": False} if runs_program else None
        app.command(name, cls=Command, help=text, context_settings=settings)(guarded)
        return work

    return register


daemon_command = functools.partial(command, opened=_daemon_client)
"""Registers a command that calls the daemon."""

project_command = functools.partial(command, opened=_project_client)
"""Registers a command on a loaded project; its client's paths are below the project's."""


def _set_signature(guarded: Any, work: Any, shared: tuple[str, ...]) -> None:
    """Set on the command the options of `work` and the shared ones, without what is passed in."""
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(work, eval_str=True).parameters.values()
        if one.name not in _GIVEN
    ]
    for name in shared:
        kind, default = _SHARED[name]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
        )
    guarded.__signature__ = inspect.Signature(parameters)
    guarded.__annotations__ = {one.name: one.annotation for one in parameters}

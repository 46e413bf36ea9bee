"""`kaged todo`: the todo list of an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.output import Output
from kaged.cli.runner import group, project_command

if TYPE_CHECKING:
    from kaged.cli.client import DaemonClient

Issue = Annotated[int, typer.Argument(min=1, help="The issue's number.")]
Items = Annotated[list[str], typer.Argument(help="The tasks, each in quotes.")]
Task = Annotated[str, typer.Argument(help="The task: its text, or a part that only it contains.")]
Criterion = Annotated[
    bool, typer.Option("--criterion", help="These are criteria for the result, not steps.")
]
Phase = Annotated[str | None, typer.Option(help="The phase of work that the tasks belong to.")]

app = group("Show and change the todo list of an issue.")


def _show(found: Any, output: Output) -> None:
    output.line(found["markdown"] or "The list is empty.")


@project_command(app, "list", view=_show)
def list_todos(client: DaemonClient, issue: Issue) -> Any:
    """Show the list."""
    return client.get(f"/issues/{issue}/todos")


@project_command(app, "set", view=_show)
def replace(
    client: DaemonClient,
    issue: Issue,
    items: Items,
    criterion: Criterion = False,
    phase: Phase = None,
) -> Any:
    """Replace the steps; criteria are kept."""
    return _put(client, issue, "set", items, criterion, phase)


@project_command(app, "add", view=_show)
def add(
    client: DaemonClient,
    issue: Issue,
    items: Items,
    criterion: Criterion = False,
    phase: Phase = None,
) -> Any:
    """Add tasks at the end of the list."""
    return _put(client, issue, "add", items, criterion, phase)


@project_command(app, "start", view=_show)
def start(client: DaemonClient, issue: Issue, task: Task) -> Any:
    """Mark a task as in progress; the one that was goes back to pending."""
    return _act(client, issue, "start", content=task)


@project_command(app, "done", view=_show)
def done(client: DaemonClient, issue: Issue, task: Task) -> Any:
    """Mark a task as done."""
    return _act(client, issue, "done", content=task)


@project_command(app, "drop", view=_show)
def drop(client: DaemonClient, issue: Issue, task: Task) -> Any:
    """Abandon a task or a criterion; it stays on record."""
    return _act(client, issue, "drop", content=task)


@project_command(app, "note", view=_show)
def note(
    client: DaemonClient,
    issue: Issue,
    task: Task,
    text: Annotated[str, typer.Argument(help="The text of the note.")],
) -> Any:
    """Add a note to a task."""
    return _act(client, issue, "note", content=task, text=text)


def _put(
    client: DaemonClient,
    issue: int,
    action: str,
    items: list[str],
    criterion: bool,
    phase: str | None,
) -> Any:
    kind = "criterion" if criterion else "step"
    return _act(client, issue, action, items=items, kind=kind, phase=phase)


def _act(client: DaemonClient, issue: int, action: str, **body: Any) -> Any:
    return client.post(f"/issues/{issue}/todos", {"action": action, **body})

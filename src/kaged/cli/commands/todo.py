"""`kaged todo`: the todo list of an issue."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.output import Output
from kaged.cli.runner import DaemonClient, group, project_command

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


def _register_put(action: str, text: str) -> None:
    @project_command(app, action, view=_show, text=text)
    def put(
        client: DaemonClient,
        issue: Issue,
        items: Items,
        criterion: Criterion = False,
        phase: Phase = None,
    ) -> Any:
        kind = "criterion" if criterion else "step"
        return _act(client, issue, action, items=items, kind=kind, phase=phase)


def _register_mark(action: str, text: str) -> None:
    @project_command(app, action, view=_show, text=text)
    def mark(client: DaemonClient, issue: Issue, task: Task) -> Any:
        return _act(client, issue, action, content=task)


_register_put("set", "Replace the steps; criteria are kept.")
_register_put("add", "Add tasks at the end of the list.")
_register_mark("start", "Mark a task as in progress; the one that was goes back to pending.")
_register_mark("done", "Mark a task as done.")
_register_mark("drop", "Abandon a task or a criterion; it stays on record.")


@project_command(app, "note", view=_show)
def note(
    client: DaemonClient,
    issue: Issue,
    task: Task,
    text: Annotated[str, typer.Argument(help="The text of the note.")],
) -> Any:
    """Add a note to a task."""
    return _act(client, issue, "note", content=task, text=text)


def _act(client: DaemonClient, issue: int, action: str, **body: Any) -> Any:
    return client.post(f"/issues/{issue}/todos", {"action": action, **body})

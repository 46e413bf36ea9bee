"""`kaged todo`: the todo list of an issue."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output

Issue = Annotated[int, typer.Argument(min=1, help="The number of the issue.")]
Items = Annotated[list[str], typer.Argument(help="The tasks, each in quotes.")]
Task = Annotated[str, typer.Argument(help="The task, by its text or a part that only it has.")]
Criterion = Annotated[
    bool, typer.Option("--criterion", help="Something that the result must fulfil, not a step.")
]
Phase = Annotated[str | None, typer.Option(help="The stage of work these belong to.")]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Look at and change the todo list of an issue.", no_args_is_help=True)
    _register_lists(app)
    _register_tasks(app)
    return app


def _register_lists(app: typer.Typer) -> None:
    @command(app, "list")
    def list_todos(issue: Issue, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show the list."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/issues/{issue}/todos")
        _show(found, output)

    @command(app, "set")
    def replace(
        issue: Issue,
        items: Items,
        criterion: Criterion = False,
        phase: Phase = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Replace the steps by others; criteria stay."""
        _put("set", issue, items, criterion, phase, project, as_json)

    @command(app, "add")
    def add(
        issue: Issue,
        items: Items,
        criterion: Criterion = False,
        phase: Phase = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Put tasks at the end of the list."""
        _put("add", issue, items, criterion, phase, project, as_json)


def _register_tasks(app: typer.Typer) -> None:
    @command(app, "start")
    def start(issue: Issue, task: Task, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Mark a task as begun; whatever was in progress goes back to pending."""
        _act({"action": "start", "content": task}, issue, project, as_json)

    @command(app, "done")
    def done(issue: Issue, task: Task, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Mark a task as done."""
        _act({"action": "done", "content": task}, issue, project, as_json)

    @command(app, "drop")
    def drop(issue: Issue, task: Task, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Abandon a task, also a criterion; it is kept on record."""
        _act({"action": "drop", "content": task}, issue, project, as_json)

    @command(app, "note")
    def note(
        issue: Issue,
        task: Task,
        text: Annotated[str, typer.Argument(help="What to write down.")],
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Write something down under a task."""
        _act({"action": "note", "content": task, "text": text}, issue, project, as_json)


def _put(
    action: str,
    issue: int,
    items: list[str],
    criterion: bool,
    phase: str | None,
    project: str,
    as_json: bool,
) -> None:
    kind = "criterion" if criterion else "step"
    body: dict[str, Any] = {"action": action, "items": items, "kind": kind, "phase": phase}
    _act(body, issue, project, as_json)


def _act(body: dict[str, Any], issue: int, project: str, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with in_project(project) as client:
        found = client.post(f"/issues/{issue}/todos", body)
    _show(found, output)


def _show(found: dict[str, Any], output: Output) -> None:
    output.result(found)
    output.line(found["markdown"] or "Nothing on the list.")

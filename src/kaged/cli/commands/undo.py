"""`kaged undo`: take back what agents did to files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output

MAX_STEPS = 2000

Session = Annotated[str | None, typer.Option("--session", help="Only steps of this session.")]
Run = Annotated[str | None, typer.Option("--run", help="Only steps of this run.")]
Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, max=MAX_STEPS, help="How many at most.")
]
Count = Annotated[int, typer.Argument(min=1, max=MAX_STEPS, help="How many steps.")]
RunId = Annotated[str, typer.Argument(help="The run, as `kaged undo list` shows it.")]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(
        help="Undo what agents did to files. A step is one tool call.", no_args_is_help=True
    )

    @command(app, "list")
    def list_steps(
        session: Session = None,
        run: Run = None,
        lines: Lines = 20,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """List the steps that can be taken back, newest first."""
        output = Output(as_json=as_json)
        wanted = {"session_id": session, "run_id": run, "limit": lines}
        with in_project(project) as client:
            found = client.get(
                "/undo", {name: value for name, value in wanted.items() if value is not None}
            )
        output.result(found)
        output.table(
            ["step", "time", "agent", "tool", "run", "files"],
            [_row(one) for one in found["steps"]],
        )
        left_out = found["total"] - len(found["steps"])
        if left_out:
            output.note(f"{left_out} older steps are not shown.")

    @command(app, "last")
    def last(
        count: Count = 1,
        session: Session = None,
        run: Run = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Take back the last step, or the last COUNT: all of them or none."""
        body = {"count": count, "session_id": session, "run_id": run}
        _undo(body, project, as_json)

    @command(app, "run")
    def whole_run(run_id: RunId, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Take back everything that a run did to files: all of it or nothing."""
        _undo({"run_id": run_id}, project, as_json)

    return app


def _undo(body: dict[str, Any], project: str, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with in_project(project) as client:
        found = client.post("/undo", body)
    output.result(found)
    for one in found["files"]:
        output.line(f"{one['change']} {one['path']}")
    count = len(found["steps"])
    output.note(f"Undid {count} {'step' if count == 1 else 'steps'}.")


def _row(step: dict[str, Any]) -> list[str]:
    files = ", ".join(f"{one['path']} ({one['change']})" for one in step["files"])
    return [
        str(step["step"]),
        step["time"],
        step["caller"],
        step["tool_name"],
        step["run_id"],
        files,
    ]

"""`kaged undo`: revert what agents did to files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.output import Output, counted, show_rows
from kaged.cli.runner import DaemonClient, group, project_command

MAX_STEPS = 2000

Session = Annotated[str | None, typer.Option("--session", help="Only steps of this session.")]
Run = Annotated[str | None, typer.Option("--run", help="Only steps of this run.")]
Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, max=MAX_STEPS, help="Maximum number of steps.")
]
Count = Annotated[int, typer.Argument(min=1, max=MAX_STEPS, help="How many steps.")]
RunId = Annotated[str, typer.Argument(help="The run's id, from `kaged undo list`.")]

app = group("Undo what agents did to files. A step is one tool call.")


def _show_steps(found: Any, output: Output) -> None:
    columns = ("step", "time", "agent=caller", "tool=tool_name", "run=run_id")
    show_rows(found["steps"], columns, output)
    left_out = found["total"] - len(found["steps"])
    if left_out:
        output.note(f"{left_out} older steps are not shown.")


def _show_undone(found: Any, output: Output) -> None:
    for one in found["files"]:
        output.line(f"{one['change']} {one['path']}")
    output.note(f"Undid {counted(len(found['steps']), 'step')}.")


@project_command(app, "list", view=_show_steps)
def list_steps(
    client: DaemonClient, session: Session = None, run: Run = None, lines: Lines = 20
) -> Any:
    """List the steps that can be undone, newest first."""
    return client.get("/undo", {"session_id": session, "run_id": run, "limit": lines})


@project_command(app, "last", view=_show_undone)
def last(client: DaemonClient, count: Count = 1, session: Session = None, run: Run = None) -> Any:
    """Undo the last step, or the last COUNT steps: all of them or none."""
    return client.post("/undo", {"count": count, "session_id": session, "run_id": run})


@project_command(app, "run", view=_show_undone)
def whole_run(client: DaemonClient, run_id: RunId) -> Any:
    """Undo everything that a run did to files: all of it or nothing."""
    return client.post("/undo", {"run_id": run_id})

"""`kaged workflow`: the jobs that a project declares, and their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.inputs import file_of, pairs_of, plain_value
from kaged.cli.output import Output, joined, table
from kaged.cli.runner import DaemonClient, Lines, group, project_command

RunId = Annotated[str, typer.Argument(help="The run's id.")]

app = group("Start the workflows of a project and follow their runs.")


def _show_run(found: Any, output: Output) -> None:
    output.fields({**found, "inputs": json.dumps(found["inputs"])})


def _inputs(workflow: Any) -> str:
    return ", ".join(
        f"{name}{'' if declared['required'] else '?'}:{declared['type']}"
        for name, declared in workflow["inputs"].items()
    )


@project_command(
    app,
    "list",
    view=table(
        ("name", ("inputs", _inputs), ("may start", joined("invokable_by")), "description"),
        "workflows",
    ),
)
def list_workflows(client: DaemonClient) -> Any:
    """List the workflows that the project declares."""
    return client.get("/workflows")


@project_command(app, "run", view="Started {found[run_id]}.")
def run(
    client: DaemonClient,
    name: Annotated[str, typer.Argument(help="The workflow's name.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="NAME=VALUE; numbers, true and false as in JSON."),
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", help="NAME=PATH for an input of type file.")
    ] = None,
) -> Any:
    """Start a workflow. It runs in the daemon."""
    declared = client.get("/workflows")["workflows"]
    types = next((one["inputs"] for one in declared if one["name"] == name), {})
    body = {
        "inputs": {
            key: plain_value(types.get(key, {}).get("type"), text) for key, text in pairs_of(inputs)
        },
        "files": {key: file_of(Path(text)) for key, text in pairs_of(files)},
    }
    return client.post(f"/workflows/{name}/runs", body)


@project_command(
    app,
    "runs",
    view=table(
        ("run=run_id", "workflow=workflow_name", "status", "ms=duration_ms", "error"), "items"
    ),
)
def runs(client: DaemonClient, lines: Lines = 20) -> Any:
    """List the runs of a project, newest first."""
    return client.get("/runs", {"limit": lines})


@project_command(app, "status", view=_show_run)
def status(client: DaemonClient, run_id: RunId) -> Any:
    """Show the status of a run."""
    return client.get(f"/runs/{run_id}")


@project_command(app, "cancel", view=_show_run)
def cancel(client: DaemonClient, run_id: RunId) -> Any:
    """Cancel a run. A run that has ended stays as it is."""
    return client.post(f"/runs/{run_id}/cancel")

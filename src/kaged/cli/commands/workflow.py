"""`kaged workflow`: the jobs that a project declares, and their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.cli.commands.inproject import HERE, InProject, file_of, in_project, pairs_of, plain_value
from kaged.cli.context import AsJson, Lines, command
from kaged.cli.output import Output

RunId = Annotated[str, typer.Argument(help="The run's id.")]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Start a project's workflows and watch them.", no_args_is_help=True)
    _register_starting(app)
    _register_watching(app)
    return app


def _register_starting(app: typer.Typer) -> None:
    @command(app, "list")
    def list_workflows(project: InProject = HERE, as_json: AsJson = False) -> None:
        """List the workflows that the project declares."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/workflows")
        output.result(found)
        output.table(
            ["name", "inputs", "may start", "description"],
            [
                [
                    one["name"],
                    ", ".join(map(_input, one["inputs"].items())),
                    ", ".join(one["invokable_by"]),
                    one["description"],
                ]
                for one in found["workflows"]
            ],
        )

    @command(app, "run")
    def run(
        name: Annotated[str, typer.Argument(help="The workflow's name.")],
        inputs: Annotated[
            list[str] | None,
            typer.Option("--input", "-i", help="NAME=VALUE; numbers, true and false as in JSON."),
        ] = None,
        files: Annotated[
            list[str] | None, typer.Option("--file", "-f", help="NAME=PATH of a file input.")
        ] = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Start a workflow; it goes on by itself."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            declared = client.get("/workflows")["workflows"]
            types = next((one["inputs"] for one in declared if one["name"] == name), {})
            body = {
                "inputs": {key: _value(types, key, text) for key, text in pairs_of(inputs)},
                "files": {key: file_of(Path(text)) for key, text in pairs_of(files)},
            }
            found = client.post(f"/workflows/{name}/runs", body)
        output.result(found)
        output.line(f"Started {found['run_id']}.")


def _register_watching(app: typer.Typer) -> None:
    @command(app, "runs")
    def runs(
        lines: Lines = 20,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """List the runs of a project, newest first."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get("/runs", {"limit": lines})
        output.result(found)
        output.table(
            ["run", "workflow", "status", "ms", "error"],
            [
                [
                    one["run_id"],
                    one["workflow_name"],
                    one["status"],
                    one["duration_ms"],
                    one["error"],
                ]
                for one in found["items"]
            ],
        )

    @command(app, "status")
    def status(run_id: RunId, project: InProject = HERE, as_json: AsJson = False) -> None:
        """Show the status of a run."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.get(f"/runs/{run_id}")
        _show(found, output)

    @command(app, "cancel")
    def cancel(run_id: RunId, project: InProject = HERE, as_json: AsJson = False) -> None:
        """End a run; one that has ended stays as it is."""
        output = Output(as_json=as_json)
        with in_project(project) as client:
            found = client.post(f"/runs/{run_id}/cancel")
        _show(found, output)


def _show(found: dict[str, Any], output: Output) -> None:
    output.result(found)
    output.fields({**found, "inputs": json.dumps(found["inputs"])})


def _input(pair: tuple[str, dict[str, Any]]) -> str:
    name, drawn = pair
    return f"{name}{'' if drawn['required'] else '?'}:{drawn['type']}"


def _value(types: dict[str, Any], name: str, text: str) -> Any:
    """Read a value as the type that the input has; what does not fit the daemon complains about."""
    return plain_value(types.get(name, {}).get("type"), text)

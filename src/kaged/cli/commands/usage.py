"""`kaged usage`: what runs took of models, by person, team, day, project or model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.output import Output, show_rows
from kaged.cli.runner import DaemonClient, daemon_command

PAGE = 200

app = typer.Typer()

By = Annotated[
    str, typer.Option("--by", help="What to sum by: person, team, day, project or model.")
]
Person = Annotated[str | None, typer.Option("--person", help="Only this person's runs.")]
Project = Annotated[str | None, typer.Option("--project", help="Only this project id.")]
Since = Annotated[
    str | None, typer.Option(help="From this time on: ISO 8601 with zone, or epoch milliseconds.")
]
Until = Annotated[
    str | None, typer.Option(help="Before this time: ISO 8601 with zone, or epoch milliseconds.")
]


def _show(found: Any, output: Output) -> None:
    columns = (
        ("name", lambda one: one["name"] or "(unknown)"),
        "runs",
        "in=input_tokens",
        "out=output_tokens",
        "cached=cached_tokens",
        ("cost", _cost),
    )
    show_rows(found, columns, output)


def _cost(one: Any) -> str:
    if one["cost_usd"] is None:
        return "unknown"
    rest = one["runs"] - one["priced_runs"]
    return f"${one['cost_usd']:.4f}" + (f" and {rest} of unknown price" if rest else "")


@daemon_command(app, "usage", view=_show)
def usage(
    client: DaemonClient,
    by: By = "person",
    person: Person = None,
    project: Project = None,
    since: Since = None,
    until: Until = None,
) -> Any:
    """Show what runs took of models: tokens, and the price where it is known."""
    found: list[Any] = []
    asked = {"by": by, "person": person, "project_id": project, "since": since, "until": until}
    params = {name: value for name, value in asked.items() if value is not None}
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = client.get("/usage", {**params, "limit": PAGE, **more})
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found

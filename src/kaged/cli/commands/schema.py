"""`kaged schema`: the JSON Schemas of the files that people write."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kaged.base import KagedError
from kaged.cli.output import Output
from kaged.cli.runner import command

app = typer.Typer()


@command(app, "schema")
def schema(
    output: Output,
    name: Annotated[
        str | None, typer.Argument(help="The schema's name. Without it, the names are listed.")
    ] = None,
) -> None:
    """Print the JSON Schema of a configuration file. Editors can use it to check the file."""
    from kaged.config.schemas import schemas

    found = schemas()
    if name is None:
        output.result(sorted(found))
        output.table(["name"], [[known] for known in sorted(found)])
        return
    if name not in found:
        raise KagedError(
            f"There is no schema named {name!r}.",
            code="schema_not_found",
            fix=f"Use one of {', '.join(sorted(found))}.",
        )
    # A schema is JSON whether or not --json was given.
    output.raw(json.dumps(found[name], indent=2, ensure_ascii=True))

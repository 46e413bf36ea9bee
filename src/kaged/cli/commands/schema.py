"""`kaged schema`: the JSON Schemas of the files that people write."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kaged.base import KagedError
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output


class SchemaNotFound(KagedError):
    """There is no schema of that name."""

    code = "schema_not_found"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "schema")
    def schema(
        name: Annotated[
            str | None, typer.Argument(help="Which file; without it the names are listed.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Print the JSON Schema of a file that people write, for editors and checks."""
        from kaged.config.schemas import schemas

        output = Output(as_json=as_json)
        found = schemas()
        if name is None:
            output.result(sorted(found))
            output.table(["name"], [[known] for known in sorted(found)])
            return
        if name not in found:
            raise SchemaNotFound(
                f"There is no schema named {name!r}.",
                fix=f"Take one of {', '.join(sorted(found))}.",
            )
        # A schema is JSON whether or not --json was given.
        output.raw(json.dumps(found[name], indent=2, ensure_ascii=True))

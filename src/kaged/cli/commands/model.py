"""`kaged model`: the models that agents can name, and whether they answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.context import AsJson, command, daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(help="Look at your models and try them.", no_args_is_help=True)

    @command(app, "list")
    def list_models(as_json: AsJson = False) -> None:
        """List the aliases of [models] in local.toml."""
        output = Output(as_json=as_json)
        with daemon() as client:
            found = client.get("/models")
        output.result(found)
        output.table(
            ["alias", "model", "server", "key", "context", "fallbacks"],
            [_row(one) for one in found["models"]],
        )
        for one in found["models"]:
            for problem in one["problems"]:
                output.note(f"{one['alias']}: {problem['message']}")

    @command(app, "check")
    def check(
        aliases: Annotated[
            list[str] | None, typer.Argument(help="The aliases to try; all of them when left out.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Ask models one small question each; exit code 8 when one does not answer."""
        output = Output(as_json=as_json)
        with daemon() as client:
            wanted = aliases or [one["alias"] for one in client.get("/models")["models"]]
            rows = [client.post("/models/check", {"alias": alias}) for alias in wanted]
        output.result({"models": rows})
        output.table(
            ["alias", "model", "result", "ms", "says"],
            [
                [one["alias"], one["model"], _result(one), one["took_ms"], one["says"]]
                for one in rows
            ],
        )
        for one in rows:
            _explain(one, output)
        if not all(one["ok"] for one in rows):
            raise typer.Exit(Exit.FINDINGS)

    return app


def _row(one: dict[str, Any]) -> list[object]:
    if not one["usable"]:
        return [one["alias"], "cannot be used", "", "", "", ""]
    return [
        one["alias"],
        one["model"],
        one["base_url"] or "",
        "yes" if one["has_key"] else "no",
        one["context_window"] or "",
        ", ".join(one["fallbacks"]),
    ]


def _result(one: dict[str, Any]) -> str:
    return "ok" if one["ok"] else str(one["error"]["code"])


def _explain(one: dict[str, Any], output: Output) -> None:
    error = one["error"]
    if error is None:
        return
    output.note(f"{one['alias']}: {error['message']}")
    if error["vendor_says"]:
        output.note(f"  the server says: {error['vendor_says']}")
    if error["fix"]:
        output.note(f"  fix: {error['fix']}")

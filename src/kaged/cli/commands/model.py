"""`kaged model`: the models that agents can name, and whether they answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kaged.cli.commands.model_add import app
from kaged.cli.exits import Exit
from kaged.cli.output import Output, show_rows
from kaged.cli.runner import DaemonClient, daemon_command

__all__ = ["app"]


def _show_models(found: Any, output: Output) -> None:
    rows = [_row(one) for one in found["models"]]
    output.table(["alias", "model", "server", "key", "context", "fallbacks"], rows)
    for one in found["models"]:
        for problem in one["problems"]:
            output.note(f"{one['alias']}: {problem['message']}")


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


def _show_checks(found: Any, output: Output) -> Exit | None:
    columns = (
        "alias",
        "model",
        ("result", lambda one: "ok" if one["ok"] else one["error"]["code"]),
        "ms=took_ms",
        "says",
    )
    show_rows(found["models"], columns, output)
    for one in found["models"]:
        error = one["error"]
        if error is None:
            continue
        output.note(f"{one['alias']}: {error['message']}")
        if error["vendor_says"]:
            output.note(f"  the server says: {error['vendor_says']}")
        if error["fix"]:
            output.note(f"  fix: {error['fix']}")
    return None if all(one["ok"] for one in found["models"]) else Exit.FINDINGS


@daemon_command(app, "list", view=_show_models)
def list_models(client: DaemonClient) -> Any:
    """List the aliases under [models] in local.toml."""
    return client.get("/models")


Aliases = Annotated[
    list[str] | None, typer.Argument(help="The aliases to test. Default: all of them.")
]


@daemon_command(app, "check", view=_show_checks)
def check(client: DaemonClient, aliases: Aliases = None) -> Any:
    """Send each model a short question. Exit code 8 if one does not answer."""
    wanted = aliases or [one["alias"] for one in client.get("/models")["models"]]
    return {"models": [client.post("/models/check", {"alias": alias}) for alias in wanted]}


daemon_command(app, "test", view=_show_checks, text="The same as `check`.")(check)

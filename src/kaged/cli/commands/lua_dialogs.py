"""Running a script's command from a terminal: its dialogs are asked here, one at a time."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.cli.commands.inproject import ProjectClient


def run_script_command(
    client: ProjectClient,
    second: Callable[[], ProjectClient],
    name: str,
    raw: str,
    *,
    interactive: bool,
) -> dict[str, Any]:
    """Run a command of a script and answer its dialogs; returns what the daemon said.

    `second` returns another client of the same project: while one waits for the command, the other
    asks for dialogs.
    """
    body = {"name": name, "raw": raw, "interactive": interactive}
    if not interactive:
        return client.post("/lua/commands", body)
    outcome: dict[str, Any] = {}
    done = threading.Event()

    def work() -> None:
        try:
            outcome["answer"] = client.post("/lua/commands", body)
        except Exception as error:  # noqa: BLE001 - boundary: raised again below, in the main thread
            outcome["error"] = error
        finally:
            done.set()

    worker = threading.Thread(target=work, name="lua command", daemon=True)
    worker.start()
    front = second()
    while not done.wait(0.05):
        for dialog in front.get("/lua/dialogs")["dialogs"]:
            front.post(f"/lua/dialogs/{dialog['id']}", {"answer": ask(dialog)})
    worker.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["answer"]


def ask(dialog: dict[str, Any]) -> Any:
    """Ask one dialog on the terminal; None when it is dismissed."""
    title = f"[{dialog['script']}] {dialog['title']}"
    match dialog["kind"]:
        case "select":
            return _select(title, dialog["items"])
        case "confirm":
            return typer.confirm(f"{title} {dialog.get('message', '')}".strip(), err=True)
        case "editor":
            import click

            return click.edit(dialog.get("prefill") or "")
        case _:
            hint = dialog.get("placeholder")
            shown = f"{title} ({hint})" if hint else title
            said = typer.prompt(shown, default="", show_default=False, err=True)
            return said or None


def _select(title: str, items: list[dict[str, Any]]) -> int | None:
    typer.echo(title, err=True)
    for number, item in enumerate(items, 1):
        detail = item.get("detail")
        typer.echo(f"  {number}. {item['label']}{f'  {detail}' if detail else ''}", err=True)
    said = typer.prompt("Number (empty: none)", default="", show_default=False, err=True)
    return int(said) if said.isdigit() and 1 <= int(said) <= len(items) else None


def script_has(client: ProjectClient, name: str) -> bool:
    """Return whether a script of the project has a command of that name, or such an alias."""
    commands = client.get("/lua")["commands"]
    return any(name == one["name"] or name in (one.get("aliases") or ()) for one in commands)


def on_terminal() -> bool:
    """Return whether somebody can be asked here."""
    return sys.stdin.isatty() and sys.stderr.isatty()

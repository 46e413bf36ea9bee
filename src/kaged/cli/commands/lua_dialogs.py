"""Running a script's command from a terminal, which shows its dialogs one at a time."""

from __future__ import annotations

import sys
import threading
from typing import Any

import typer

from kaged.cli.runner import DaemonClient


def run_script_command(
    client: DaemonClient,
    second: DaemonClient,
    name: str,
    raw: str,
    *,
    interactive: bool,
) -> dict[str, Any]:
    """Run a command of a script and answer its dialogs; return the daemon's answer.

    `second` is another client of the same project: while the first waits for the
    command, it asks for dialogs.
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
    while not done.wait(0.05):
        for dialog in second.get("/lua/dialogs")["dialogs"]:
            second.post(f"/lua/dialogs/{dialog['id']}", {"answer": ask(dialog)})
    worker.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["answer"]


def ask(dialog: dict[str, Any]) -> Any:
    """Show one dialog on the terminal; return None when it is dismissed."""
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


def script_has(client: DaemonClient, name: str) -> bool:
    """Return whether a script of the project has a command of that name, or such an alias."""
    commands = client.get("/lua")["commands"]
    return any(name == one["name"] or name in (one.get("aliases") or ()) for one in commands)


def on_terminal() -> bool:
    """Return whether a person can be asked here."""
    return sys.stdin.isatty() and sys.stderr.isatty()

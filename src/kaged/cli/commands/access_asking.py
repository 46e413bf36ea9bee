"""Questions about refused calls, at the terminal: what would be granted, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import typer

from kaged.cli.output import one_line

if TYPE_CHECKING:
    from kaged.cli.commands.asking import Read
    from kaged.cli.runner import DaemonClient

ACCESS: Final = "access"
PREFIX: Final = "access_"


def is_access(request_id: str) -> bool:
    """Return whether an id is one of a question about a refused call."""
    return request_id.startswith(PREFIX)


def fetch_access(client: DaemonClient, request_id: str) -> dict[str, Any]:
    """Return the question in full. Raises DaemonRefused: it is somebody else's, or gone."""
    return dict(client.below("").get(f"/inbox/{quote(request_id, safe='')}"))


def waiting_access(client: DaemonClient) -> list[dict[str, Any]]:
    """Return the questions of a project's agents that wait."""
    project = client.get("")["id"]
    wanted = {"project_id": project, "kind": ACCESS, "state": "pending"}
    return list(client.below("").get("/inbox", wanted)["items"])


def show_access(asked: dict[str, Any], say: Callable[[str], object]) -> None:
    """Show what would be granted, line by line."""
    say(one_line(asked["title"]))
    for line in asked["details"]:
        # Not `one_line`: the beginning of a line of a diff means something.
        say("  " + "".join(char if char.isprintable() else "?" for char in line))


def ask_access(asked: dict[str, Any], read: Read) -> str:
    """Ask the person which of the choices it is; nothing typed asks again."""
    choices = [str(one) for one in asked["choices"]]
    while True:
        said = read(f"{', '.join(choices[:-1])} or {choices[-1]}> ").strip().lower()
        found = [one for one in choices if said and one.startswith(said)]
        if len(found) == 1:
            return found[0]


def answer_access(client: DaemonClient, asked: dict[str, Any], choice: str) -> None:
    """Send an answer to exactly what was shown."""
    if choice not in asked["choices"]:
        raise typer.BadParameter(f"choose one of {', '.join(asked['choices'])}")
    body = {"digest": asked["digest"], "answer": {"choice": choice}}
    client.below("").post(f"/inbox/{quote(asked['id'], safe='')}/answer", body)

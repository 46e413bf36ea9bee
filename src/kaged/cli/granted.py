"""What people let agents do in sessions, for the commands that show cages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kaged.base import KagedError
from kaged.cli.context import daemon
from kaged.cli.runner import find_project


def granted_in(root: str) -> list[dict[str, Any]]:
    """Return what is granted in the sessions of a project; nothing where no daemon holds it."""
    try:
        with daemon(start=False) as client:
            found = find_project(client, str(Path(root).absolute()))
            return list(client.get(f"/projects/{found['id']}/grants")["items"])
    except KagedError:
        return []


def granted_lines(granted: Iterable[dict[str, Any]], *, named: bool = False) -> Iterator[str]:
    """Yield them for people, `named` with the agent of each."""
    found = list(granted)
    if found:
        yield "  Granted when calls were refused; `kaged session revoke` takes it back:"
    for one in found:
        agent = f"{one['agent']} may " if named else ""
        where = f"in session {one['session_id']}"
        if one["run_id"] is not None:
            where = f"in run {one['run_id']}"
        yield f"    {agent}{one['words']} ({where}, {one['id']})"

"""`kaged doctor`: what protects you, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import typer

from kaged.cli.context import AsJson, Offline, command, daemon, locations, quiet_logs
from kaged.cli.exits import Exit
from kaged.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "doctor")
    def doctor(as_json: AsJson = False, offline: Offline = False) -> None:
        """Show what protects you and what does not, with the fix; exit code 8 on a failure."""
        output = Output(as_json=as_json)
        rows = None if offline else _ask_daemon()
        if rows is None:
            rows = _look_ourselves()
        output.result({"rows": rows})
        output.table(
            ["status", "check", "found", "fix"],
            [[row["status"], row["id"], row["cause"], row["fix"]] for row in rows],
        )
        if any(row["status"] == "fail" for row in rows):
            raise typer.Exit(Exit.FINDINGS)


def _ask_daemon() -> list[dict[str, Any]] | None:
    """Ask a running daemon, which sees what we do not; never start one for this."""
    from kaged.base import KagedError

    with daemon(start=False) as client:
        try:
            return client.get("/doctor")["rows"]
        except KagedError:
            return None


def _look_ourselves() -> list[dict[str, Any]]:
    from kaged.diagnostics.cage_probe import probe_cages
    from kaged.diagnostics.doctor import examine

    quiet_logs()
    rows = asyncio.run(examine(locations(), os.environ, probe=probe_cages))
    return [
        {"id": row.id, "status": row.status.value, "what": row.what, "cause": row.cause,
         "fix": row.fix}
        for row in rows
    ]  # fmt: skip

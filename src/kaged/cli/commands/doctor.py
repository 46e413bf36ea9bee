"""`kaged doctor`: what protects this host, what does not, and how to fix it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import typer

from kaged.cli.context import daemon, locations, quiet_logs
from kaged.cli.exits import Exit
from kaged.cli.output import Output, show_rows
from kaged.cli.runner import Offline, command

app = typer.Typer()


def _show_rows(found: Any, output: Output) -> Exit | None:
    columns = ("status", "check=id", "found=cause", "fix")
    show_rows(found["rows"], columns, output)
    failed = any(row["status"] == "fail" for row in found["rows"])
    return Exit.FINDINGS if failed else None


@command(app, "doctor", view=_show_rows)
def doctor(offline: Offline = False) -> Any:
    """Check the host and the configuration. Shows how to fix problems; exit code 8 on a failure."""
    rows = None if offline else _ask_daemon()
    return {"rows": _examine() if rows is None else rows}


def _ask_daemon() -> list[dict[str, Any]] | None:
    """Ask a running daemon, which sees what this process cannot; never start one for this."""
    from kaged.base import KagedError

    with daemon(start=False) as client:
        try:
            return client.get("/doctor")["rows"]
        except KagedError:
            return None


def _examine() -> list[dict[str, Any]]:
    from kaged.diagnostics.cage_probe import probe_cages
    from kaged.diagnostics.doctor import examine
    from kaged.serve.http.models import DoctorRowOut

    quiet_logs()
    rows = asyncio.run(examine(locations(), os.environ, probe=probe_cages))
    return [DoctorRowOut.of(row).model_dump(mode="json") for row in rows]

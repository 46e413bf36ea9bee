"""`kaged session export` and `import`: sessions as files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kaged.cli.commands.inproject import HERE, InProject, in_project
from kaged.cli.context import AsJson, command
from kaged.cli.output import Output

IMPORT_LIMIT_BYTES = 32 * 1024 * 1024
CURRENT = "current"

Which = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Its id or the beginning of it; the current one."),
]


def register_files(app: typer.Typer) -> None:
    """Add these commands to the group."""

    @command(app, "export")
    def export(
        session: Which = CURRENT,
        file: Annotated[
            Path | None, typer.Argument(help="Where to write it; standard output by default.")
        ] = None,
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Copy a session as JSON lines, which import takes back without loss."""
        with in_project(project) as client:
            pieces = client.stream(f"/sessions/{session}/export")
            if file is None:
                for piece in pieces:
                    sys.stdout.buffer.write(piece)
                sys.stdout.flush()
                return
            # Private and never over something else: it holds what was said.
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as target:
                target.writelines(pieces)
                target.flush()
                os.fsync(target.fileno())
                size = target.tell()
        output = Output(as_json=as_json)
        output.result({"file": str(file.absolute()), "bytes": size})
        output.line(f"Wrote {file} ({size} bytes).")

    @command(app, "import")
    def import_(
        file: Annotated[Path, typer.Argument(help="What export wrote; - is standard input.")],
        project: InProject = HERE,
        as_json: AsJson = False,
    ) -> None:
        """Take in an exported session as a new one."""
        output = Output(as_json=as_json)
        data = _read(file)
        with in_project(project) as client:
            done = client.upload("/sessions/import", data)
        output.result(done)
        made = done["session"]
        output.line(
            f"Imported {done['imported_from']} as {made['id']} ({made['entries']} entries)."
        )


def _read(file: Path) -> bytes:
    if str(file) == "-":
        data = sys.stdin.buffer.read(IMPORT_LIMIT_BYTES + 1)
    else:
        with file.open("rb") as source:
            data = source.read(IMPORT_LIMIT_BYTES + 1)
    if len(data) > IMPORT_LIMIT_BYTES:
        raise typer.BadParameter(f"{file} has more than {IMPORT_LIMIT_BYTES} bytes")
    return data

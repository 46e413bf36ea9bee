"""`kaged backup` and `kaged restore`: everything that the daemon keeps, in one file, and back."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import SystemClock
from kaged.cli.output import Output, counted
from kaged.cli.runner import command

app = typer.Typer()
restores = typer.Typer()


def _show_backup(found: Any, output: Output) -> None:
    output.line(f"Wrote {found['file']}: {_held(found)}.")
    output.note("Whoever has this file has your linked accounts. Keep it as you keep passwords.")


@command(app, "backup", view=_show_backup)
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
) -> Any:
    """Copy everything the daemon keeps into one file. The daemon may run meanwhile."""
    from kaged.cli import trail
    from kaged.store.home_archive import write_archive

    made = write_archive(trail.settings(), file.absolute(), SystemClock())
    return {"file": str(file.absolute()), **asdict(made)}


def _show_restore(found: Any, output: Output) -> None:
    output.line(f"Restored {_held(found)}, as they were at {found['created_at']}.")
    output.note("Start the daemon and check: kaged daemon start, kaged audit verify, kaged doctor.")


@command(restores, "restore", view=_show_restore)
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `kaged backup` wrote.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move files that are in the way aside first.")
    ] = False,
) -> Any:
    """Put a backup into this home. Refused while a daemon runs, or where there is data already."""
    from kaged.base.instance_lock import InstanceLock
    from kaged.cli import trail
    from kaged.store.home_archive import restore_archive

    settings, clock = trail.settings(), SystemClock()
    settings.places.ensure()
    with contextlib.ExitStack() as held:
        for path in dict.fromkeys((settings.places.lock, settings.home_lock)):
            lock = InstanceLock.acquire(path, clock.now_ms())
            held.callback(lock.release)
        return asdict(restore_archive(settings, file, clock, replace=replace))


def _held(found: Any) -> str:
    return f"{counted(found['files'], 'file')}, {found['bytes']} bytes"

"""Which lines of `kaged` a process runs; processes of a copy note it with `started_here`.

Kept apart from the pytest plugin: this is imported by daemons and commands.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path

import coverage

LINES = "KAGED_NOTE_LINES"


def tracer(source: Path) -> coverage.Coverage:
    """Return a running measurement of what this process runs below a folder."""
    made = coverage.Coverage(data_file=None, source=[str(source)], config_file=False)
    made.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
    made.start()
    return made


def lines_of(measured: coverage.Coverage, source: Path) -> dict[str, dict[int, list[str]]]:
    """Return by file below the source, and by line, in which contexts it ran."""
    data = measured.get_data()
    return {
        str(Path(file).relative_to(source)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }


def started_here(switch: str) -> None:
    """Note the lines of this process, which a test has started, until it ends."""
    if LINES in os.environ:
        return  # the process of the tests themselves
    told = _told(switch)
    if told is None:
        return  # nothing is measured now, or this is a cage, which cannot see the file
    source = Path(told["source"])
    here = tracer(source)

    def write() -> None:
        here.stop()
        # Asked again: a server that forks commands for many modules began with the first one's.
        module = (_told(switch) or told)["module"]
        lines = {file: sorted(by_line) for file, by_line in lines_of(here, source).items()}
        target = Path(told["folder"]) / f"{os.getpid()}-{os.urandom(4).hex()}.json"
        target.write_text(json.dumps({"module": module, "lines": lines}), encoding="utf-8")

    atexit.register(write)


def _told(switch: str) -> dict[str, str] | None:
    """Return what is measured now, and for which module; None when that cannot be known."""
    try:
        return json.loads(Path(switch).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

"""Running: each benchmark in a process of its own, one after the other, with word on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from kaged.base import SystemClock, iso_utc
from scoreboard.curve import Curve
from scoreboard.machine import commit, load
from scoreboard.options import QUICK_KEY
from scoreboard.results import Result
from scoreboard.row import Row

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "bench"
TIMEOUT_S = 1800.0
SAID_CHARS = 600


def run_all(
    files: Sequence[Path],
    *,
    quick: bool,
    keep: Callable[[Sequence[Result]], None] = lambda _: None,
    word: TextIO | None = None,
    output: Path = OUTPUT,
) -> list[Result]:
    """Run the benchmarks; one that does not come to its end is named and does not stop the rest.

    `keep` is called after each with what there is so far: a run that is broken off loses nothing.
    """
    to = sys.stderr if word is None else word
    output.mkdir(parents=True, exist_ok=True)
    measured = commit()
    began = time.perf_counter()
    found: list[Result] = []
    for number, file in enumerate(files, 1):
        name = file.stem.removeprefix("bench_")
        head = f"bench: [{number}/{len(files)}] {name}"
        _say(to, head, began, end="" if to.isatty() else "\n")
        one = run_one(file, output, commit_name=measured, quick=quick)
        _say(to, f"{head}: {_summary(one)}", began, again=to.isatty())
        found.append(one)
        keep(found)
    return found


def run_one(file: Path, output: Path, *, commit_name: str = "", quick: bool = False) -> Result:
    """Run one benchmark; what it prints goes to a log beside the results."""
    name = file.stem.removeprefix("bench_")
    out, log = output / f"{name}.json", output / f"{name}.log"
    out.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), QUICK_KEY: "1" if quick else "0"}
    load_before, started = load(), time.perf_counter()
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "scoreboard.child", str(file), str(out)],
            cwd=ROOT,
            env=env,
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        error = _end(process)
    took_s = time.perf_counter() - started
    data: dict[str, Any] = {"rows": [], "curves": []}
    if not error and out.exists():
        data = json.loads(out.read_text(encoding="utf-8"))
        out.unlink()
    elif not error:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        error = f"exit code {process.returncode}: {text[-SAID_CHARS:]}"
    return Result(
        name,
        tuple(Row.from_json(one) for one in data["rows"]),
        tuple(Curve.from_json(one) for one in data["curves"]),
        took_s,
        load_before,
        load(),
        commit_name,
        iso_utc(SystemClock().now_ms()),
        error,
    )


def _end(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end, and end what it left behind; return what went wrong with waiting."""
    try:
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"it took over {TIMEOUT_S:g} s"
    finally:
        # One that fails half-way may leave a daemon or a peer of its own running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ""


def _summary(one: Result) -> str:
    if one.error:
        return f"CRASHED after {one.took_s:.0f} s"
    verdicts = [row.verdict for row in one.rows]
    words = [
        f"{verdicts.count(verdict)} {verdict}"
        for verdict in ("met", "missed", "no target", "peer missing")
        if verdict in verdicts
    ]
    words += [f"{len(one.curves)} curves"] if one.curves else []
    return f"{', '.join(words) or 'nothing'} in {one.took_s:.0f} s"


def _say(to: TextIO, text: str, began: float, *, end: str = "\n", again: bool = False) -> None:
    minutes, seconds = divmod(int(time.perf_counter() - began), 60)
    lead = "\r\x1b[K" if again else ""
    print(f"{lead}{minutes:3d}:{seconds:02d} {text}", end=end, file=to, flush=True)


__all__ = ["OUTPUT", "run_all", "run_one"]

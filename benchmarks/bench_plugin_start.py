"""From nothing to a plugin's first answer, and what our SDK adds to the start of a caged Python.

The first row types the tutorial's commands into a fresh home with no daemon running. The second
lets the daemon start two empty plugins in full cages: one with the SDK, and one that loads nothing
and writes the handshake out by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scoreboard import Row, at_most, quick, row, show
from whole.harness.daemon import Daemon  # pyright: ignore[reportMissingImports] - beside the tests
from whole.harness.plugin import PluginFolder  # pyright: ignore[reportMissingImports] - beside the tests

FIRST_CALL_TARGET_S = 10.0
START_TARGET_RATIO = 1.6
ROUNDS = 3 if quick() else 15
TRIES = 1 if quick() else 3
_KAGED = str(Path(sys.executable).with_name("kaged"))
TUTORIAL = (
    ("plugin", "new", "hello", "--lang", "python"),
    ("plugin", "check", "hello"),
    ("plugin", "install", "hello", "--yes"),
    ("plugin", "enable", "hello"),
    ("plugin", "call", "hello", "greeting.get"),
)
SDK = """\
from kaged_sdk import create_plugin
create_plugin("sdk", "1.0.0", {"a.b": lambda params, context: params}).start()
"""
BARE = """\
import sys
NAME = '"name": "bare", "version": "1.0.0", "api_version": 1, "methods": ["a.b"]'
for line in sys.stdin:
    number = line.partition('"id":')[2].partition(",")[0].strip(" }\\n")
    if number:
        said = NAME if '"initialize"' in line else '"status": "ok"'
        print('{"jsonrpc": "2.0", "id": ' + number + ', "result": {' + said + "}}", flush=True)
"""


def run() -> list[Row]:
    """Measure both."""
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        top = Path(folder).resolve()
        first = [_first_call(top / f"t{number}") for number in range(TRIES)]
        starts = _starts(top)
    ours, bare = min(starts["sdk"]), min(starts["bare"])
    return [
        row(
            "`kaged plugin new` to a first answered call, by the tutorial's commands",
            min(first),
            "s",
            target=at_most(FIRST_CALL_TARGET_S, min(first), "s"),
            samples=first,
        ),
        row(
            "start of a caged plugin with the Python SDK",
            ours * 1000,
            "ms",
            against="a caged Python that loads nothing",
            peer=bare * 1000,
            target=at_most(START_TARGET_RATIO, ours / bare, "times the peer"),
            samples=starts["sdk"],
        ),
    ]


def _first_call(home: Path) -> float:
    home.mkdir(mode=0o700)
    env = {**os.environ, "HOME": str(home), "KAGED_HOME": str(home / "k")}
    began = time.perf_counter()
    said = ""
    try:
        for words in TUTORIAL:
            done = subprocess.run(
                [_KAGED, *words], cwd=home, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            said = done.stdout
        assert json.loads(said)["greeting"] == "Hello", said
        return time.perf_counter() - began
    finally:
        subprocess.run([_KAGED, "daemon", "stop"], env=env, capture_output=True, check=False)


def _starts(top: Path) -> dict[str, list[float]]:
    daemon = Daemon(top / "h", forked=False)
    daemon.start()
    try:
        for name, program in (("sdk", SDK), ("bare", BARE)):
            made = PluginFolder(daemon, top / name, name=name, methods=["a.b"])
            (made.root / "main.py").write_text(program, encoding="utf-8")
            assert made.run()["state"] == "running", name
        taken: dict[str, list[float]] = {"sdk": [], "bare": []}
        for _ in range(ROUNDS):
            for name, times in taken.items():
                _post(daemon, name, "disable")
                began = time.perf_counter()
                assert _post(daemon, name, "enable")["state"] == "running", name
                times.append(time.perf_counter() - began)
        return taken
    finally:
        daemon.close()


def _post(daemon: Any, name: str, what: str) -> Any:
    return daemon.post(f"/plugins/{name}/{what}")


if __name__ == "__main__":
    show(run())

"""Peers: other people's programs in environments of their own under build/peers, made on demand.

`benchmarks/peers/<name>.txt` pins what is installed. An environment is made anew when its file
changes. A peer that cannot be had is an error with a reason, so that a missing comparison shows.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "benchmarks" / "peers"
PEERS = ROOT / "build" / "peers"
INSTALL_TIMEOUT_S = 600
SAID_CHARS = 300


class PeerMissing(Exception):
    """A peer cannot be had; the message says why."""


def peer_environment(name: str) -> Path:
    """Return the Python of a peer's own environment, which is made if need be."""
    pins = (PINS / f"{name}.txt").read_text(encoding="utf-8")
    place = PEERS / name
    python, stamp = place / "bin" / "python", place / "installed.txt"
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == pins:
            return python
        print(f"bench: making the environment of the peer {name}", file=sys.stderr, flush=True)
        venv.create(place, clear=True, with_pip=True)
        requirements = str(PINS / f"{name}.txt")
        _run([str(python), "-m", "pip", "install", "--quiet", "-r", requirements], name)
        stamp.write_text(pins, encoding="utf-8")
    return python


def peer_program(name: str, program: str) -> str:
    """Return a command-line peer: from its own environment, or of the system if it pins nothing."""
    if (PINS / f"{name}.txt").exists():
        found = peer_environment(name).with_name(program)
        if found.exists():
            return str(found)
    elif (of_system := shutil.which(program)) is not None:
        return of_system
    raise PeerMissing(f"{program} is not installed")


def _run(argv: list[str], name: str) -> None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"{name}: installing took over {INSTALL_TIMEOUT_S} s") from error
    if done.returncode:
        raise PeerMissing(f"{name} cannot be installed: {done.stderr.strip()[-SAID_CHARS:]}")


class PeerProcess:
    """A program in a peer's environment that does one round of its work whenever it is told.

    It prints "ready" when it is, then one number (seconds) for each line that it reads.
    """

    def __init__(self, name: str, script: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [str(peer_environment(name)), "-c", script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            _, said = self._process.communicate()
            raise PeerMissing(f"{name} does not run: {said.strip()[-SAID_CHARS:]}")

    def round_s(self) -> float:
        """Run one round; return what it measured."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["PeerMissing", "PeerProcess", "peer_environment", "peer_program"]

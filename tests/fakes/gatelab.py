"""A small internet for gate tests: every address exists, servers stand where a case puts them.

A case runs in a process of its own, in a network namespace where all addresses are local; so a
granted name can lead to a real public, private or metadata address, and what is refused would in
fact have been reachable. The daemon's part runs as root or as a plain user without any capability;
the program under test runs in a real bwrap cage.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
_DRIVER = Path(__file__).with_name("gatelab_driver.py")
_TIMEOUT_S = 60

PUBLIC = "93.184.216.34"
OTHER = "8.8.4.4"
METADATA = "169.254.169.254"
PRIVATE = "10.0.0.5"
PUBLIC6 = "2606:2800:220:1::1"


@dataclass(frozen=True)
class Case:
    """One cage, its grants, the servers outside and the program inside.

    `servers` are `(address, port, kind)`; kinds: `name` answers with its own address and port and
    then echoes, `sink` reads to the end and answers with the count, `flood` sends `amount` bytes,
    `silent` accepts and says nothing, `udp` takes note of packets. `hosts` is what the daemon's
    resolver answers, with "|" between the answers to successive questions. `code` is Python that
    calls `say(key, value)`; see gatelab_inside. `facts` overrides what the machine can do,
    `neighbours` are grants of a second cage that stays open meanwhile.
    """

    grants: list[str] = field(default_factory=list[str])
    code: str = ""
    servers: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    hosts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    limits: dict[str, float] = field(default_factory=dict[str, float])
    facts: dict[str, bool] = field(default_factory=dict[str, bool])
    neighbours: list[str] = field(default_factory=list[str])
    service_port: int = 0
    amount: int = 0
    late_service_port: int = 0
    uvloop: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a case: what the program said, what was recorded, what was asked and leaked."""

    said: dict[str, Any]
    events: list[dict[str, Any]]
    resolved: list[str]
    visits: list[str]
    leaked_fds: int
    open_connections: int
    stderr: str

    def denied(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the denials whose fields match."""
        return self._matching("cage.net.denied", wanted)

    def connected(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the connections whose fields match."""
        return self._matching("cage.net.connected", wanted)

    def _matching(self, name: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["name"] == name and all(event[key] == value for key, value in wanted.items())
        ]


def identities() -> list[Any]:
    """Return who the daemon's part runs as; that of root belongs to the root part."""
    return [pytest.param("root", marks=pytest.mark.needs_root), pytest.param("user")]


def run_case(case: Case, who: str) -> Result:
    """Run a case and return its result; fails the test if the case itself broke."""
    if shutil.which("bwrap") is None:
        pytest.fail("bwrap is not installed, and these tests need it")
    done = subprocess.run(
        [sys.executable, str(_DRIVER), who, _python_for(who)],
        input=json.dumps(asdict(case)),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=_TIMEOUT_S,
        check=False,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(_paths())},
    )
    if done.returncode != 0:
        pytest.fail(f"the case broke off:\n{done.stderr}\n{done.stdout}")
    return Result(**json.loads(done.stdout))


def _paths() -> list[str]:
    import kaged

    return [str(Path(kaged.__file__).parent.parent), str(Path(__file__).parent)]


@functools.cache
def _python_for(who: str) -> str:
    """Return an interpreter that the identity can start; one below a private home is not."""
    own = str(Path(sys.executable).resolve())
    if who == "root" or os.geteuid() != 0:
        return own
    for candidate in (own, "/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(candidate).exists() and _open_to_all(Path(candidate).resolve()):
            return candidate
    pytest.fail("no python3 on this machine can be started by a plain user")


def _open_to_all(path: Path) -> bool:
    return all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))

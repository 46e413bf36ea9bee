"""A daemon under requests that are drawn from its own OpenAPI document: none of them is a 5xx."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import thorough
from thorough import THOROUGH, counted
from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.harness.requests_from_document import Drawn, Sender

REQUESTS = counted(300, 20_000, 1_000_000)
OF_A_DAEMON = 100_000
"""Some requests read all that earlier ones left (doctor, the check of the audit chain)."""
ROUNDS = 10 if THOROUGH else 1
GROWTH_BYTES = 96 * 1024 * 1024
ENDS_IT: set[str] = set()
COMPLAINTS = ("Traceback", "internal_error", "[error", "[critical")


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _say(sender: Sender, spent_s: float, size: int) -> None:
    slow = sorted(sender.slowest.items(), key=lambda one: -one[1])[:5]
    sys.stdout.write(
        f"{sender.answers.total()} requests in {spent_s:.0f} s, {sender.lost} lost, "
        f"{size >> 20} MiB, {dict(sorted(sender.answers.items()))}, slowest {slow}\n"
    )
    sys.stdout.flush()


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(6 * 3600 if THOROUGH else 200)
def test_no_drawn_request_makes_the_daemon_fail(own: Callable[..., Daemon], tmp_path: Path) -> None:
    dice = random.Random(thorough.SEED)
    for first in range(0, REQUESTS, OF_A_DAEMON):
        daemon = own()
        folder = tmp_path / str(first)
        folder.mkdir()
        _send(daemon, folder, dice, min(OF_A_DAEMON, REQUESTS - first))
        daemon.stop()


def _send(daemon: Daemon, folder: Path, dice: random.Random, many: int) -> None:
    """Send so many requests to a daemon that has not seen any, and look at what became of it."""
    socket = daemon.start()["socket"]
    project = daemon.load(Project(folder / "p"))
    project.post("/issues", {"title": "Title", "body": "Body"})
    drawn = Drawn(daemon.get("/openapi.json"), dice, ENDS_IT)
    drawn.learn({"project_id": project.id})
    sender = Sender(socket, drawn)
    began_s = time.monotonic()
    early = 0
    for round_ in range(ROUNDS):
        asyncio.run(sender.send(many // ROUNDS))
        assert not sender.wrong, "\n".join(sender.wrong)
        assert sender.lost <= sender.answers.total() // 100
        size = resident_bytes(daemon.pid)
        if round_ <= ROUNDS // 5:
            early = size
        assert size - early < GROWTH_BYTES, (early, size)
        if THOROUGH:
            _say(sender, time.monotonic() - began_s, size)
    assert daemon.running
    assert daemon.get("/status")["version"]
    # Some were carried out, and some met nothing: both ways were tried.
    assert {200, 404, 422} <= set(sender.answers), sender.answers
    said = [line for line in daemon.log().splitlines() if any(one in line for one in COMPLAINTS)]
    assert not said, said[:20]

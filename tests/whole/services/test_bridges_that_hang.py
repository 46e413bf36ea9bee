"""A bridge that stays for many calls: nobody waits for, or loses an answer by, another's call."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import wait_for
from whole.harness.services import GUESTS, PYTHON, Bridge, Desk, Person, somebody

TIMEOUT_S = 25
BOX = "slow.box"


@pytest.fixture(scope="module")
def folder(module_path: Path) -> Path:
    made = module_path / "slow"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path, folder: Path) -> Desk:
    bridge = Bridge(
        module_path,
        "slow",
        command=[*PYTHON, str(GUESTS / "bridge_hanging.py")],
        env={"BRIDGE_FOLDER": str(folder)},
        mode="persistent",
        max_concurrency=2,
        timeout_seconds=TIMEOUT_S,
    )
    return desks(bridge).open()


def calls(folder: Path) -> list[dict[str, Any]]:
    file = folder / "calls.log"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def begun(folder: Path, person: Person, operation: str) -> None:
    wanted = {"user": person.user, "operation": operation}
    wait_for(
        lambda: any(wanted.items() <= one.items() for one in calls(folder)),
        f"{operation} of {person.user}",
    )


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@whole("SC-BRG-16")
def test_a_call_that_hangs_keeps_nobody_else_waiting(desk: Desk, folder: Path) -> None:
    ann, bob, cid = somebody(), somebody(), somebody()
    with ThreadPoolExecutor(4) as threads:
        hung: Future[str] = threads.submit(desk.code, ann, BOX, "hang")
        begun(folder, ann, "hang")
        first = desk.invoke(bob, BOX, "ping")
        assert first["user"] == bob.user
        assert desk.invoke(bob, BOX, "ping")["pid"] == first["pid"]
        assert desk.invoke(cid, BOX, "ping")["pid"] == first["pid"]  # nobody uses it any more
        assert not hung.done()
        assert hung.result(timeout=120) == "capability_backend_unavailable"
    [stuck] = [one["pid"] for one in calls(folder) if one["user"] == ann.user]
    assert stuck != first["pid"]
    wait_for(lambda: not alive(stuck), "the end of the process that hung")
    # The same person goes on with another process.
    assert desk.invoke(ann, BOX, "ping")["user"] == ann.user


def test_the_end_of_one_process_loses_only_the_calls_of_its_own_person(
    desk: Desk, folder: Path
) -> None:
    ann, bob = somebody(), somebody()
    with ThreadPoolExecutor(2) as threads:
        waiting: Future[Any] = threads.submit(desk.invoke, bob, BOX, "wait")
        begun(folder, bob, "wait")
        assert desk.code(ann, BOX, "crash") == "capability_backend_unavailable"
        assert not waiting.done()
        (folder / f"{bob.user}.go").touch()
        assert waiting.result(timeout=120)["user"] == bob.user
    assert desk.invoke(ann, BOX, "ping")["user"] == ann.user


def test_there_are_no_more_processes_than_allowed_and_whoever_waits_gets_the_next(
    desk: Desk, folder: Path
) -> None:
    ann, bob, cid = somebody(), somebody(), somebody()
    with ThreadPoolExecutor(3) as threads:
        stuck = []
        for person in (ann, bob):
            stuck.append(threads.submit(desk.invoke, person, BOX, "wait"))
            begun(folder, person, "wait")
        last = threads.submit(desk.invoke, cid, BOX, "ping")
        running = {one["pid"] for one in calls(folder) if alive(one["pid"])}
        assert len(running) == 2
        assert not last.done()
        (folder / f"{ann.user}.go").touch()
        assert last.result(timeout=120)["pid"] in running
        (folder / f"{bob.user}.go").touch()
        assert [one.result(timeout=120)["user"] for one in stuck] == [ann.user, bob.user]

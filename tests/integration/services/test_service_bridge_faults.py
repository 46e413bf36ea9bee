"""Bridges that misbehave: nothing of what they say wrongly gets through, and nobody waits long."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.bridge_lab import BridgeLab, alive, until
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidOutput,
)
from raising import raises_code


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[BridgeLab]:
    found = BridgeLab(tmp_path)
    await found.open()
    found.start()
    await found.add("bridge_rogue.py", "rogue")
    yield found
    await found.close()


async def _do(lab: BridgeLab, operation: str, **params: Any) -> Any:
    return await lab.invoke(operation, capability="rogue.do", **params)


async def _code(lab: BridgeLab, operation: str) -> str:
    try:
        await _do(lab, operation)
    except CapabilityError as error:
        return "leaked" if "MARKER" in str(error) else error.code
    return "ok"


async def test_a_grandchild_that_holds_the_pipe_does_not_keep_the_answer(lab: BridgeLab) -> None:
    pid_file = lab.root / "pid"
    answer = await _do(lab, "grandchild_done", given={"pid_file": str(pid_file)})
    assert answer["output"] == {"fine": True}
    pid = int(pid_file.read_text(encoding="ascii"))
    await until(lambda: not alive(pid))


async def test_what_left_a_bridge_without_a_cage_ends_after_its_answer(lab: BridgeLab) -> None:
    """It has a session of its own, no pipe of ours and another parent; it is found all the same."""
    pid_file = lab.root / "pid"
    answer = await _do(lab, "deserter_done", given={"pid_file": str(pid_file)})
    assert answer["output"] == {"fine": True}
    pid = int(pid_file.read_text(encoding="ascii"))
    await until(lambda: not alive(pid))


async def test_a_bridge_that_is_closed_takes_along_what_left_it(lab: BridgeLab) -> None:
    pid_file = lab.root / "pid"
    provider = await lab.add("bridge_rogue.py", "closing")
    call = lab.tasks.start(
        lab.invoke("deserter", capability="closing.do", given={"pid_file": str(pid_file)}), "call"
    )
    await until(lambda: pid_file.exists() and pid_file.read_text(encoding="ascii"))
    await provider.close()
    assert not alive(int(pid_file.read_text(encoding="ascii")))
    with pytest.raises(CapabilityBackendUnavailable):
        await call


async def test_a_cancelled_call_ends_its_bridge(lab: BridgeLab) -> None:
    pid_file = lab.root / "pid"
    call = lab.tasks.start(_do(lab, "sleep", given={"pid_file": str(pid_file)}), "sleep")
    await until(lambda: pid_file.exists() and pid_file.read_text(encoding="ascii"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    pid = int(pid_file.read_text(encoding="ascii"))
    await until(lambda: not alive(pid))


async def test_two_hundred_megabytes_are_refused_without_being_kept(lab: BridgeLab) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        with pytest.raises(CapabilityInvalidOutput):
            await _do(lab, "flood")
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb <= 32 * 1024
    assert await _code(lab, "flood_stderr") == "ok"


async def test_a_crash_of_a_mutating_call_is_an_unknown_outcome(lab: BridgeLab) -> None:
    with pytest.raises(CapabilityBackendUnavailable):
        await _do(lab, "crash", idempotency_key="k")
    with raises_code("capability_outcome_unknown", CapabilityError):
        await _do(lab, "crash", idempotency_key="k")


async def test_what_a_bridge_says_on_stderr_stays_in_the_log_masked(lab: BridgeLab) -> None:
    with capture_logs() as logs:
        answer = await _do(lab, "secret_stderr")
    assert answer["output"] == {"fine": True}
    [line] = [one for one in logs if one["event"] == "bridge.stderr"]
    assert line["text"] == "the key is [redacted]"


async def test_a_persistent_bridge_that_answers_wrongly_is_ended(
    lab: BridgeLab, tmp_path: Path
) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import json, sys\n"
        "ops = [{'name': n, 'description': 'x', 'requires_auth': False}"
        " for n in ('once', 'twice', 'other', 'junk', 'mute')]\n"
        "d = {'definitions': [{'id': 'twice.do', 'description': 'x', 'operations': ops}],"
        " 'features': ['persistent']}\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line)\n"
        "    ok = {'version': 1, 'id': r['id'], 'result': {'fine': True}}\n"
        "    name = r['params'].get('operation')\n"
        "    if r['method'] == 'definitions': print(json.dumps({**ok, 'result': d}), flush=True)\n"
        "    elif name == 'other': print(json.dumps({**ok, 'id': 'cap_bridge_x'}), flush=True)\n"
        "    elif name == 'junk': print('junk', flush=True)\n"
        "    elif name == 'mute': pass\n"
        "    else:\n"
        "        print(json.dumps(ok), flush=True)\n"
        "        if name == 'twice': print(json.dumps(ok), flush=True)\n",
        encoding="utf-8",
    )
    await lab.add(script, "twice", mode="persistent", timeout_s=20)

    async def do(operation: str) -> Any:
        return (await lab.invoke(operation, capability="twice.do"))["output"]

    assert await do("once") == {"fine": True}
    for operation in ("other", "junk"):
        with pytest.raises(CapabilityInvalidOutput):
            await do(operation)
        assert await do("once") == {"fine": True}
    assert await do("twice") == {"fine": True}  # the second answer ends the process
    await asyncio.sleep(0.2)
    assert await do("once") == {"fine": True}

"""Bridges that misbehave: nothing of what they say wrongly gets through, and nobody waits long."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.bridge_lab import BridgeLab, alive, until
from fakes.service_lab import FakeProvider
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidOutput,
)
from raising import raises_code
from requirements import requirement


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


@requirement(
    "SC-BRG-03",
    "SC-BRG-05",
    "SC-BRG-06",
    "SC-BRG-07",
    "SC-BRG-08",
    "SC-BRG-09",
    "SC-BRG-10",
    "SC-AMB-16",
    "SC-ERR-07",
)
async def test_an_answer_that_breaks_the_envelope_is_refused(lab: BridgeLab) -> None:
    broken = [
        "two_values",
        "other_id",
        "no_id",
        "numeric_id",
        "both",
        "neither",
        "result_list",
        "result_string",
        "result_number",
        "result_true",
        "result_null",
        "error_string",
        "error_no_code",
        "error_empty_code",
        "error_no_message",
        "error_empty_message",
        "error_numeric_code",
        "version_2",
        "version_text",
        "version_float",
        "version_null",
        "version_absent",
        "version_true",
        "not_json",
        "array",
        "bad_utf8",
        "nan",
        "duplicate_key",
        "deep",
        "leak_key",
        "leak_token",
        "nothing",
    ]
    with capture_logs() as logs:
        codes = {name: await _code(lab, name) for name in broken}
        fine = {name: await _code(lab, name) for name in ("fine", "extra_key", "noise")}
    assert codes == dict.fromkeys(broken, "capability_invalid_output")
    assert fine == dict.fromkeys(fine, "ok")
    assert (await _do(lab, "fine"))["output"] == {"fine": True}
    assert "MARKER" not in json.dumps(await lab.seen())
    assert "MARKER" not in json.dumps(logs, default=str)


@requirement("SC-AMB-13", "SC-AMB-15", "SC-ERR-06")
async def test_each_way_to_fail_has_its_code(lab: BridgeLab) -> None:
    unavailable, invalid = "capability_backend_unavailable", "capability_invalid_output"
    found = {
        name: await _code(lab, name)
        for name in ("exit_3", "exit_3_valid", "crash", "closed_pipe", "flood", "two_values")
    }
    assert found == {
        "exit_3": unavailable,
        "exit_3_valid": unavailable,  # a non-zero exit wins over a valid envelope
        "crash": unavailable,
        "closed_pipe": invalid,  # it wrote nothing
        "flood": invalid,
        "two_values": invalid,
    }
    assert await _code(lab, "noise") == "ok"
    exits = [one.get("bridge.exit_code") for one in await lab.seen("capability_invoke")]
    assert exits[0] == 3


@requirement("SC-BRG-04", "SC-AMB-14")
async def test_a_bridges_own_error_reaches_the_caller_scrubbed(lab: BridgeLab) -> None:
    with pytest.raises(CapabilityBackendUnavailable, match="too much"):
        await _do(lab, "quota")
    assert (await lab.seen("capability_invoke"))[-1]["bridge.error_code"] == "quota"
    with pytest.raises(CapabilityAuthFlowDenied, match="no"):
        await _do(lab, "denied")
    with pytest.raises(CapabilityBackendUnavailable) as long:
        await _do(lab, "long_error")
    assert len(long.value.message) <= 300
    assert "\n" not in long.value.message
    with pytest.raises(CapabilityBackendUnavailable) as secret:
        await _do(lab, "secret_error")
    assert secret.value.message == "[redacted] [redacted]"


@requirement("SC-BRG-16")
@pytest.mark.parametrize("operation", ["sleep", "stubborn", "grandchild", "deserter"])
async def test_a_bridge_that_does_not_answer_is_ended_with_its_group(
    lab: BridgeLab, operation: str
) -> None:
    provider = await lab.add("bridge_rogue.py", "slow", timeout_s=1)
    pid_file = lab.root / "pid"
    with pytest.raises(CapabilityBackendUnavailable):
        await lab.invoke(operation, capability="slow.do", given={"pid_file": str(pid_file)})
    assert pid_file.exists()
    pid = int(pid_file.read_text(encoding="ascii"))
    await until(lambda: not alive(pid))
    await until(lambda: provider._runner is not None and provider._runner.running == 0)
    assert await _code(lab, "fine") == "ok"  # another provider was never in the way


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


@requirement("SC-PROV-12")
async def test_a_missing_a_killed_and_a_failing_provider_look_alike(lab: BridgeLab) -> None:
    await lab.add(Path("/nonexistent/bridge.py"), "gone", command=("/nonexistent/bridge",))
    codes = set()
    for capability, operation in (("gone.email", "ping"), ("rogue.do", "crash")):
        with pytest.raises(CapabilityError) as failed:
            await lab.invoke(operation, capability=capability)
        codes.add(failed.value.code)

    async def refuse(call: Any) -> Any:
        raise ConnectionRefusedError("upstream")

    provider = FakeProvider("acme")
    provider.on_invoke = refuse
    await lab.register(provider)
    with pytest.raises(CapabilityError) as failed:
        await lab.invoke("ping", capability="acme.email")
    codes.add(failed.value.code)
    assert codes == {"capability_backend_unavailable"}


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

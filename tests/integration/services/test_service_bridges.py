"""Bridges: programs of both generations work unmodified, and see what they should and no more."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.bridge_lab import BridgeLab, alive, until
from fakes.service_lab import KEY
from kaged.cage.orphan_processes import MARK
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode
from kaged.services.contract import AuthBeginCall, CapabilityCallContext
from kaged.services.errors import CapabilityAuthFlowDenied, CapabilityError, CapabilityInvalidInput
from kaged.services.providers.bridge import BridgeProvider
from kaged.services.providers.bridge_command import BridgeSpec, bridge_env
from kaged.wire.envelope import bridge_request_id
from kaged.wire.token_keys import parse_key
from kaged.wire.tokens import TokenRejected, bridge_audience, mint_token, verify_token
from raising import raises_code
from requirements import requirement


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[BridgeLab]:
    found = BridgeLab(tmp_path)
    await found.open()
    found.start()
    yield found
    await found.close()


def _log(lab: BridgeLab) -> list[dict[str, Any]]:
    text = (lab.root / "log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@requirement(
    "SC-BRG-01",
    "SC-BRG-02",
    "SC-BRG-11",
    "SC-BRG-12",
    "SC-BRG-13",
    "SC-BRG-14",
    "SC-AMB-12",
)
async def test_a_bridge_sees_four_methods_and_a_signed_caller(lab: BridgeLab) -> None:
    await lab.add("bridge_g1.py", env=(("BRIDGE_LOG", str(lab.root / "log")),))
    await lab.call("list")
    await lab.link("alice", "work")
    token = lab.token("alice", "private", chat_id="chat-9", thread_id="thread-9")
    await lab.invoke("whoami", token=token)
    log = _log(lab)
    requests = [one["request"] for one in log]
    assert [one["method"] for one in requests] == [
        "definitions",
        "auth_begin",
        "auth_complete",
        "invoke",
    ]
    ids = {one["id"] for one in requests}
    assert len(ids) == 4
    assert len({bridge_request_id(secrets.randbits) for _ in range(1000)}) == 1000
    for one in requests:
        assert set(one) == {"version", "id", "namespace", "method", "params"}
        assert one["version"] == 1
        assert type(one["version"]) is int
        assert one["id"].startswith("cap_bridge_")
        assert one["namespace"] == "gog"
    assert requests[0]["params"] == {}
    secret = parse_key(log[1]["env"]["ASH_CONTEXT_TOKEN_SECRET"])
    for one in requests[1:]:
        verified = verify_token(
            secret,
            one["params"]["context_token"],
            clock=lab.clock,
            audience=bridge_audience("gog"),
            audience_required=True,
        )
        assert verified.effective_user_id == "alice"
        assert verified.expires_at - verified.issued_at == 80  # the timeout and a minute
        assert verified.routing.chat_id == ("chat-9" if one["method"] == "invoke" else None)
    raw = {"user_id", "chat_id", "chat_type", "thread_id", "session_key", "context"}

    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {*value, *(k for v in value.values() for k in keys(v))}
        if isinstance(value, list):
            return {k for v in value for k in keys(v)}
        return set()

    for one in requests:
        assert not keys(one) & raw
    assert requests[2]["params"].keys() >= {
        "code",
        "callback_url",
        "authorization_code",
        "raw_callback_url",
        "state",
        "account_hint",
        "flow_state",
    }
    assert requests[3]["params"].keys() == {
        "capability_id",
        "operation",
        "input_data",
        "account_ref",
        "idempotency_key",
        "context_token",
    }


@requirement("SC-AMB-11")
async def test_a_bridge_cannot_speak_for_anybody_else(lab: BridgeLab) -> None:
    for name in ("gog", "acme"):
        log = (("BRIDGE_LOG", str(lab.root / f"log-{name}")),)
        await lab.add("bridge_g1.py", name, env=log)
    keys = {}
    for name in ("gog", "acme"):
        text = (lab.root / f"log-{name}").read_text(encoding="utf-8")
        keys[name] = json.loads(text.splitlines()[0])["env"]["ASH_CONTEXT_TOKEN_SECRET"]
    assert keys["gog"] != keys["acme"]
    assert all(len(one) == 43 for one in keys.values())
    stolen = parse_key(keys["gog"])
    assert len(stolen.secret) == 32
    assert stolen.secret != KEY.secret
    for audience in ("rpc", "bridge:gog", "bridge:acme"):
        forged = mint_token(stolen, "alice", clock=lab.clock, audience=audience)
        with pytest.raises(TokenRejected):
            await lab.invoke("ping", token=forged)
        with pytest.raises(TokenRejected):
            verify_token(parse_key(keys["acme"]), forged, clock=lab.clock, audience="bridge:acme")
    assert (await lab.invoke("ping"))["ok"]  # the unmodified bridge verifies its own


@requirement("SC-BRG-23")
async def test_a_bridge_inherits_next_to_nothing(tmp_path: Path) -> None:
    lab = BridgeLab(tmp_path)
    await lab.open()
    lab.start(
        {
            "PATH": "/usr/bin:/bin",
            "HOME": "/home/host",
            "LANG": "C.UTF-8",
            "OPENAI_API_KEY": "HOST-API-KEY",
            "ASH_CONTEXT_TOKEN_SECRET": "HOST-SIGNING-SECRET",
            "PYTHONPATH": "/host/code",
            "GOGCLI_THEME": "dark",
            "OTHER_THING": "no",
        }
    )
    own = (("MINE", "yes"), ("ASH_CONTEXT_TOKEN_SECRET", "TAKEN-OVER"))
    await lab.add("bridge_rogue.py", "rogue", env=own, env_prefixes=("GOGCLI_",))
    shown = (await lab.invoke("env", capability="rogue.do"))["output"]
    names = set(shown["names"]) - {"PWD", "SHLVL", "_", "LC_CTYPE"}  # what shells and Python add
    names -= {MARK}  # says who started it; nothing of the host's environment
    assert names == {
        "PATH",
        "HOME",
        "LANG",
        "MINE",
        "GOGCLI_THEME",
        "ASH_CONTEXT_TOKEN_SECRET",
    }
    text = json.dumps(shown)
    for marker in ("HOST-API-KEY", "HOST-SIGNING", "/host/code", "TAKEN-OVER"):
        assert marker not in text
    assert shown["cwd"] == []  # a private, empty directory
    fds = (await lab.invoke("fds", capability="rogue.do"))["output"]["fds"]
    assert set(fds) <= {0, 1, 2, 3}  # 3 is the listing itself
    await lab.close()


def test_the_secret_is_set_last() -> None:
    spec = BridgeSpec("x", "x", ("x",), env=(("ASH_CONTEXT_TOKEN_SECRET", "mine"), ("A", "1")))
    env = bridge_env(spec, {"ASH_CONTEXT_TOKEN": "t", "ASH_CONTEXT_TOKEN_SECRET": "host"}, "key")
    assert dict(env) == {"A": "1", "ASH_CONTEXT_TOKEN_SECRET": "key"}
    assert env[-1][0] == "ASH_CONTEXT_TOKEN_SECRET"


@requirement("SC-AMB-37")
@pytest.mark.parametrize("generation", ["bridge_g1.py", "bridge_g2.py"])
async def test_bridges_of_both_generations_work(lab: BridgeLab, generation: str) -> None:
    await lab.add(generation)
    assert "gog.email" in {row["id"] for row in (await lab.call("list"))["capabilities"]}
    flow = await lab.call("auth.begin", capability="gog.email", account_hint="work")
    state = "&state=state-alice" if generation == "bridge_g2.py" else ""
    if state:
        with raises_code("capability_auth_state_mismatch", CapabilityError):
            await lab.call(
                "auth.complete", flow_id=flow["flow_id"], callback_url="https://h/?code=c"
            )
    url = f"https://localhost/cb?code=c{state}"
    done = await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)
    assert done == {"ok": True, "account_ref": "acct_work"}
    answer = (await lab.invoke("whoami"))["output"]
    assert (answer["user"], answer["account"]) == ("alice", "acct_work")
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", "bob")


async def test_a_device_flow_of_a_bridge_is_polled_to_its_end(lab: BridgeLab) -> None:
    ready = lab.root / "ready"
    await lab.add("bridge_g2.py", env=(("BRIDGE_READY", str(ready)),))
    flow = await lab.call("auth.begin", capability="gog.devices")
    assert (flow["flow_type"], flow["user_code"]) == ("device_code", "ABCD-EFGH")
    pending = await lab.call("auth.poll", flow_id=flow["flow_id"])
    assert pending == {"status": "pending", "retry_after_seconds": 3}
    ready.touch()
    lab.flows._polls.clear()  # time passes
    done = await lab.call("auth.poll", flow_id=flow["flow_id"])
    assert done == {"ok": True, "account_ref": "acct_device"}
    revoked = await lab.call("auth.revoke", capability="gog.devices", account_ref="acct_device")
    assert revoked["provider_revoked"] is True
    flow = await lab.call("auth.begin", capability="gog.email")
    url = "https://h/?code=denied&state=state-alice"
    with pytest.raises(CapabilityAuthFlowDenied):
        await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)


async def test_a_persistent_bridge_is_one_process_for_many_calls(lab: BridgeLab) -> None:
    await lab.add("bridge_g2.py", mode="persistent")
    flow = await lab.call("auth.begin", capability="gog.email")
    url = "https://h/?code=c&state=state-alice"
    await lab.call("auth.complete", flow_id=flow["flow_id"], callback_url=url)
    answers = await asyncio.gather(*(lab.invoke("whoami") for _ in range(20)))
    [pid] = {one["output"]["pid"] for one in answers}
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    for _ in range(50):  # the end of the pipe is noticed a moment later
        await asyncio.sleep(0.01)
    again = (await lab.invoke("whoami"))["output"]["pid"]
    assert again != pid


async def test_a_waiting_process_is_used_by_the_next_call(lab: BridgeLab) -> None:
    await lab.add("bridge_g1.py")
    await lab.invoke("ping")
    runner = _runner(lab, "gog")
    await until(lambda: runner._standby is not None)
    waiting = runner._standby
    started = len([one for one in lab.processes if one[0] == "cage.started"])
    await lab.invoke("ping")
    assert waiting is not None
    assert not waiting.running
    assert len([one for one in lab.processes if one[0] == "cage.started"]) <= started + 1
    await until(lambda: runner._standby is not None)
    runner._drop_standby()
    assert runner._standby is None


async def test_many_calls_at_once_stay_within_the_cap(lab: BridgeLab) -> None:
    provider = await lab.add("bridge_g1.py", timeout_s=120, max_concurrency=3, mode="cold")
    answers = await asyncio.gather(*(lab.invoke("ping", f"user{n}") for n in range(30)))
    assert [one["output"]["user"] for one in answers] == [f"user{n}" for n in range(30)]
    assert provider.most_running == 3


async def test_a_blank_user_never_starts_a_process(lab: BridgeLab) -> None:
    provider = lab.bridge("bridge_g1.py")
    with pytest.raises(CapabilityInvalidInput):
        await provider.auth_begin(AuthBeginCall("gog.email", None, CapabilityCallContext(" ")))
    assert lab.processes == []
    await provider.close()


@requirement("SC-CFG-04")
async def test_a_command_is_words_and_never_a_shell_line(lab: BridgeLab, tmp_path: Path) -> None:
    script = tmp_path / "words.py"
    script.write_text(
        "import json, sys\n"
        "r = json.load(sys.stdin)\n"
        "ops = [{'name': 'go', 'description': ' '.join(sys.argv[1:]), 'requires_auth': False}]\n"
        "d = [{'id': 'gog.words', 'description': 'Words.', 'operations': ops}]\n"
        "print(json.dumps({'version': 1, 'id': r['id'], 'result': {'definitions': d}}))\n",
        encoding="utf-8",
    )
    words = ("$(id)", "; rm x", "`ls`", "*")
    await lab.add(script, command=("/usr/bin/python3", str(script), *words))
    [row] = (await lab.call("list", include_operations=True))["capabilities"]
    assert row["operation_details"][0]["description"] == " ".join(words)


@requirement("SC-AMB-39")
async def test_a_caged_bridge_has_its_grants_and_nothing_else(lab: BridgeLab) -> None:
    outside = lab.root / "outside.txt"
    outside.write_text("SECRET", encoding="utf-8")
    guests = str(Path(__file__).parents[2] / "guests")
    probe = lab.root / "granted"
    probe.mkdir()
    (probe / "bridge.py").write_text(
        "import json, socket, sys\n"
        "r = json.load(sys.stdin)\n"
        "def look():\n"
        "    found = {}\n"
        f"    try:\n        found['outside'] = open({str(outside)!r}).read()\n"
        "    except OSError as e:\n        found['outside'] = type(e).__name__\n"
        "    try:\n        socket.create_connection(('1.1.1.1', 443), 2); found['net'] = 'open'\n"
        "    except OSError as e:\n        found['net'] = 'refused'\n"
        "    return found\n"
        "ops = [{'name': 'look', 'description': 'Look.', 'requires_auth': False}]\n"
        "d = [{'id': 'gog.look', 'description': 'Look.', 'operations': ops}]\n"
        "res = {'definitions': d} if r['method'] == 'definitions' else {'output': look()}\n"
        "print(json.dumps({'version': 1, 'id': r['id'], 'result': res}))\n",
        encoding="utf-8",
    )
    cage = CagePolicy(fs=(FsGrant(str(probe), FsMode.RO),))
    await lab.add(probe / "bridge.py", cage=cage)
    found = (await lab.invoke("look", capability="gog.look"))["output"]
    assert found == {"outside": "FileNotFoundError", "net": "refused"}
    assert all(data["caged"] for name, data in lab.processes if name == "cage.started")
    # The same program as everywhere passes the same suite inside a cage.
    caged = CagePolicy(fs=(FsGrant(guests, FsMode.RO),))
    await lab.add("bridge_g1.py", "acme", cage=caged)
    await lab.link(capability="acme.email")
    assert (await lab.invoke("whoami", capability="acme.email"))["output"]["user"] == "alice"


async def test_the_start_without_a_cage_is_on_record(lab: BridgeLab) -> None:
    await lab.add("bridge_g1.py")
    started = [data for name, data in lab.processes if name == "cage.started"]
    assert started[0]["caged"] is False
    assert "without a cage" in started[0]["weaknesses"][0]


def _runner(lab: BridgeLab, namespace: str) -> Any:
    entry = lab.registry.provider(namespace)
    assert entry is not None
    assert isinstance(entry.provider, BridgeProvider)
    return entry.provider._runner

"""The steps of a plugin's start, in order, as the real parts take them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kaged.cage.prepare as prepare_module
import kaged.plugins.conversation as conversation_module
import kaged.plugins.handshake as handshake_module
import kaged.plugins.storereader as reader_module
from fakes.host_over_http import http_host, write_stub
from fakes.running_daemon import ANY_PORT, daemon_in_process
from kaged.peer import PeerProcess
from requirements import requirement

LOOK = "cd /proc/$PPID/fd; readlink 0 1 2; echo $KAGED_PLUGIN_NAME"


@requirement("PH-SUP-02")
async def test_a_start_takes_its_steps_in_order(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    stub = write_stub(
        tmp_path / "s",
        {
            "log": str(logs / "stub"),
            "on": {"a.b": [{"run": ["/bin/sh", "-c", LOOK]}]},
        },
        capabilities=[f"write:fs:{logs}", f"exec:sh:{logs}", f"exec:readlink:{logs}"],
    )
    async with http_host(home) as host:
        await host.running(stub)
    (logs / "stub").unlink()
    steps: list[str] = []

    def noting(step: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not (logs / "stub").exists() or "initialize" in steps:
                steps.append(step)
            return real(*args, **kwargs)

        return call

    def patch(owner: Any, name: str, step: str) -> None:
        monkeypatch.setattr(owner, name, noting(step, getattr(owner, name)))

    patch(reader_module, "load_manifest", "manifest")
    patch(conversation_module, "cage_request", "policy")
    patch(prepare_module, "compile_cage", "argv")
    patch(PeerProcess, "start", "spawn")

    real_check = handshake_module.check_greeting

    def checking(*args: Any) -> Any:
        steps.append(f"answer after {sent()}")
        return real_check(*args)

    def sent() -> list[str]:
        lines = (logs / "stub").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["method"] for line in lines]

    monkeypatch.setattr(handshake_module, "check_greeting", checking)
    config = ANY_PORT + '[plugins]\nenabled = ["stub"]\n'
    async with http_host(home, config) as host:
        state = await host.get("/plugins/stub")
        assert state["state"] == "running"
        # A policy becomes an option list inside the spawn; both come before the process.
        assert steps == ["manifest", "policy", "spawn", "argv", "answer after ['initialize']"]
        seen = await host.call("stub")
        assert seen["code"] == 0, seen
        *streams, name = seen["out"].split()
        assert [stream.partition(":")[0] for stream in streams] == ["pipe"] * 3
        assert name == "stub"
        assert sent()[:2] == ["initialize", "initialized"]
        events = [row["event"] for row in await host.events("plugin.spawned", "plugin.initialized")]
        assert events[-2:] == ["plugin.spawned", "plugin.initialized"]


async def test_whoever_waits_for_the_plugins_sees_none_that_is_enabled_as_disabled(
    home: Path, tmp_path: Path
) -> None:
    stub = write_stub(tmp_path / "s", {})
    async with http_host(home) as host:
        await host.running(stub)
    config = ANY_PORT + '[plugins]\nenabled = ["stub"]\n'
    async with daemon_in_process(home, config=config) as inside:
        # Asked at the earliest moment: the subsystems are open, what is installed is not known yet.
        (seen,) = (await inside.client.get("/api/v1/plugins")).json()["items"]
    assert seen["name"] == "stub"
    assert seen["state"] in {"spawning", "running"}

"""Calls and notifications of plugins over HTTP: statuses, who calls, who hears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.host_over_http import HttpHost, http_host, write_stub
from fakes.running_daemon import ANY_PORT
from kaged.events.hub import topic_filter
from kaged.serve.http.connection import PeerConnection
from requirements import requirement

ECHO = {"on": {"a.b": [{"echo": True}], "c.d": [{"env": True}]}}


@requirement("PH-METH-17", "PH-METH-01", "PH-AMB-50", "PH-ERR-03")
async def test_an_http_call_is_a_method_call_and_errors_have_their_status(
    home: Path, tmp_path: Path
) -> None:
    config = ANY_PORT + "[plugins]\nrequest_timeout_seconds = 1\n"
    on = {
        "a.b": [{"echo": True}],
        "bad.params": [{"error": [-32602, "no"]}],
        "no.answer": [{"hang": True}],
        "at.once": [{"exit": 1}],
        "ask.host": [{"ask": ["kaged.nothing", {}]}],
        "ask.own": [{"ask": ["a.b", {}]}],
    }
    methods = [*on, "not.offered"]
    async with http_host(home, config) as host:
        stub = write_stub(
            tmp_path / "s", {"on": on, "answer": {"methods": list(on)}}, methods=methods
        )
        pid = (await host.running(stub))["pid"]
        path = "/plugins/stub/call/a.b"
        got = (await host.get(f"{path}?n=1&text=x%20y"))["result"]
        assert (got["n"], got["text"]) == ("1", "x y")
        posted = (await host.post(path, {"n": 1, "list": [1, None]}))["result"]
        assert (posted["n"], posted["list"]) == (1, [1, None])
        assert (await host.call("stub", "bad.params", expect=400))["code"] == "invalid_params"
        for missing in ("not.offered", "not.declared"):
            found = await host.call("stub", missing, expect=404)
            assert found["code"] == "method_not_found"
        # The first segment says whose a method is: kaged.* is the host's, in both directions.
        await host.call("stub", "kaged.hook.on_session_start", expect=404)
        for asked in ("ask.host", "ask.own"):
            assert (await host.call("stub", asked))["error"]["code"] == -32601
        assert (await host.call("stub", "at.once", expect=502))["code"] == "plugin_unavailable"
        # Its pipe is closed before its process has ended: until then it counts as running, and
        # enabling it changes nothing.
        await host.until("stub", lambda state: state["pid"] != pid)
        await host.post("/plugins/stub/enable")
        await host.until("stub", lambda state: state["state"] == "running")
        assert (await host.call("stub", "no.answer", expect=502))["code"] == "plugin_timed_out"
        await host.post("/plugins/stub/disable")
        assert (await host.call("stub", expect=502))["code"] == "plugin_unavailable"


@requirement("PH-CTX-03", "PH-AMB-16", "PH-AMB-01")
async def test_the_operator_is_who_the_host_knows(home: Path, tmp_path: Path) -> None:
    config = '[daemon]\nbind = "127.0.0.1:0"\n[auth]\ntrusted_proxies = ["10.0.0.0/8"]\n'
    async with http_host(home, config) as host:
        await host.running(write_stub(tmp_path / "s", ECHO))
        token = (home / "http-token").read_text(encoding="utf-8").strip()

        async def operator(address: str | None) -> Any:
            peer = None if address is None else PeerConnection("tcp", address=address)
            headers = {"X-Kaged-User-Id": "ada"}
            if peer is None:
                answer = await host.client.post(
                    "/api/v1/plugins/stub/call/a.b", json={}, headers=headers
                )
            else:
                headers["Authorization"] = f"Bearer {token}"
                async with host.inside.over(peer) as client:
                    answer = await client.post(
                        "/api/v1/plugins/stub/call/a.b", json={}, headers=headers
                    )
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]["_context"]

        own = (await operator(None))["operator_id"]
        assert own not in {None, "ada"}
        assert (await operator("10.1.2.3"))["operator_id"] == "ada"
        assert (await operator("127.0.0.1"))["operator_id"] == own
        context = await operator(None)
        names = {"operator_id", "project_id", "agent_path", "session_id", "request_id"}
        assert set(context) == names
        rows = await host.events("plugin.method_called")
        assert all({"user_id", "project"}.isdisjoint(row["data"]) for row in rows)
        assert {"operator_id", "project_id"} <= set(rows[0]["data"])
    insecure = '[daemon]\nbind = "127.0.0.1:0"\n[auth]\nmode = "insecure"\n'
    async with http_host(home, insecure) as host:
        assert (await host.post("/plugins/stub/enable"))["state"] == "running"
        async with host.inside.over(PeerConnection("tcp", address="127.0.0.1")) as client:
            answer = await client.post("/api/v1/plugins/stub/call/a.b", json={})
        context = answer.json()["result"]["_context"]
        assert context["operator_id"] is None


@requirement("PH-NOTIF-03")
async def test_notifications_reach_those_who_want_this_plugins(
    host: HttpHost, tmp_path: Path
) -> None:
    on = {"on": {"a.b": [{"notify": ["x.y", {"n": 3}, 1]}, {"result": 1}]}}
    for name in ("one", "other"):
        await host.running(write_stub(tmp_path / name, on, name=name))
    hub = host.inside.daemon.services.hub
    wanted, unwanted = topic_filter(frozenset({"plugin:one"})), topic_filter(frozenset({"audit"}))
    before = hub.latest
    await host.call("one")
    await host.call("other")
    await host.events("plugin.notification")
    seen = [event for event in hub.read(before) if event.topic.startswith("plugin")]
    assert [event.topic for event in seen] == ["plugin:one", "plugin:other"]
    assert [wanted(event.topic) for event in seen] == [True, False]
    assert not any(unwanted(event.topic) for event in seen)
    assert json.loads(seen[0].text)["data"] == {"plugin": "one", "params": {"n": 3}}

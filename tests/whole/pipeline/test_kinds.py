"""Policies in the daemon's process, in a cage, and on an MCP server: the same rules for all."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mcp
import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.policies import CAPABILITIES, PRE, PolicySite, changes, entry, gives, spy
from whole.harness.project import Project

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "tests" / "guests" / "mcp_plugin_server.py"
LIBRARIES = Path(mcp.__file__).parents[1]
PERSON = "MARK-hidden-person-000004"
FILLS = changes(
    "http=HttpExtension(headers={'authorization': 'MARK-hidden-header-000001'}),"
    " security=grown(ext, 'MARK-hidden-label-000002'), custom={'open': 'MARK-shown-custom-000003'}",
    "write_headers",
    "append_labels",
    name="fills",
    priority=1,
)
ACTS = """
import asyncio, os, re, socket

calls = 0


def labels(ext, *names):
    return ext.security.model_copy(update={"labels": frozenset(names)})


def both(payload, ext):
    return PluginResult(
        modified_payload=payload.model_copy(update={"args": {**payload.args, "path": "b.txt"}}),
        modified_extensions=ext.model_copy(update={
            "http": HttpExtension(headers={"x-new": "1"}),
            "custom": {"mine": {"deep": [1, None]}}}))


def forge(payload, ext):
    return change(
        ext, request=RequestExtension(environment="forged"),
        agent=AgentExtension(agent_id="forged"), http=HttpExtension.model_construct(
            headers={"a": "b\\r\\nevil: 1"}),
        security=ext.security.model_copy(update={
            "labels": ext.security.labels | {"new"}, "classification": "forged"}),
        custom={"ok": 1})


def shrink(payload, ext):
    return PluginResult(
        modified_payload=payload.model_copy(update={"args": {"path": "b.txt"}}),
        modified_extensions=ext.model_copy(update={"security": labels(ext, "only-mine")}))


def deny(payload, ext):
    return PluginResult(
        continue_processing=False, violation=PluginViolation("no", "really", "NOPE"))


def boom(payload, ext):
    raise ValueError("boom")


def violate(payload, ext):
    raise PluginViolationError("stop", PluginViolation("r", "d", "c"))


def moved(payload):
    return payload.model_copy(update={"args": {**payload.args, "path": "b.txt"}})


def edited(payload, ext):
    # Everything in place, past what forbids it.
    payload.args["path"] = "b.txt"
    if ext.http is not None:
        ext.http.__dict__["headers"] = {"x-in-place": "1"}
    if ext.security is not None:
        ext.security.__dict__["labels"] = frozenset({"in-place"})
    if ext.custom is not None:
        ext.custom["in-place"] = {"deep": [1]}


def alike(ext):
    # Equal to what was given, and not the same objects.
    slots = {name: getattr(ext, name) for name in ("http", "security", "custom", "meta")}
    return {
        name: dict(value) if name == "custom" else value.model_copy()
        for name, value in slots.items() if value is not None}


DOES = {
    "payload": lambda payload, ext: PluginResult(modified_payload=moved(payload)),
    "label": lambda payload, ext: change(ext, security=grown(ext, "appended")),
    "header": lambda payload, ext: change(ext, http=HttpExtension(
        headers={**(ext.http.headers if ext.http else {}), "x-team": "red"})),
    "quiet": lambda payload, ext: edited(payload, ext),
    "plain": lambda payload, ext: edited(payload, ext) or PluginResult(),
    "shown": lambda payload, ext: edited(payload, ext) or PluginResult(modified_extensions=ext),
    "given": lambda payload, ext: edited(payload, ext) or PluginResult(modified_payload=payload),
    "alike": lambda payload, ext: change(ext, **alike(ext)),
    "nothing": lambda payload, ext: None,
    "echo": lambda payload, ext: PluginResult(modified_extensions=ext),
    "both": both, "forge": forge, "shrink": shrink, "deny": deny, "boom": boom,
    "violate": violate,
    "opaque": lambda payload, ext: change(ext, custom={"opaque": object()}),
    "foreign": lambda payload, ext: {"continue_processing": False},
}


class Acts(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        global calls
        calls += 1
        word = payload.args["path"].partition(".")[0]
        if word in DOES:
            return DOES[word](payload, extensions)
        if word == "count":
            return change(extensions, custom={"calls": calls, "pid": os.getpid()})
        if word == "dies":
            os.kill(os.getpid(), 9)
        if word == "hangs":
            open(self.config.config["out"] + "/hangs", "w").close()
            await asyncio.Event().wait()
        if word == "looks":
            return change(extensions, custom={"found": search(), "reach": reach(self)})


def search():
    found = set()
    marker = re.compile(rb"[A-Z]{4}-[a-z]+-[a-z]+-[0-9]{6}")
    with open("/proc/self/maps") as maps:
        spans = [line.split()[:2] for line in maps]
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for span, mode in spans:
            if mode.startswith("r"):
                start, end = (int(part, 16) for part in span.split("-"))
                try:
                    memory.seek(start)
                    found.update(one.decode() for one in marker.findall(memory.read(end - start)))
                except (OSError, ValueError, OverflowError):
                    continue
    return sorted(found)


def reach(plugin):
    got = {}
    for path in plugin.config.config["tries"]:
        try:
            got[path] = bool(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
        except OSError:
            got[path] = False
    try:
        socket.create_connection(("127.0.0.1", plugin.config.config["port"]), 1)
        got["net"] = True
    except OSError:
        got["net"] = False
    return got
"""
IN_PLACE = ("quiet", "plain", "shown", "given")
WORDS = (
    *("nothing", "echo", "both", "forge", "shrink", "deny", "boom", "violate"),
    *("opaque", "foreign"),
    *("payload", "label", "header", "alike"),
    *IN_PLACE,
)


@pytest.fixture(scope="module")
def settings() -> str:
    """Set the operator's name to one that can be searched for."""
    return f'[auth]\noperator = "{PERSON}"\n'


def acting(caged: bool, *capabilities: str, **more: Any) -> dict[str, Any]:
    """Return the entry of the class that does what a call's file name says."""
    own = more.pop("config", {})
    if not caged:
        return entry("acts", "Acts", *capabilities, config=own, **more)
    return entry("acts", "caged", *capabilities, config={"class_name": "Acts", **own}, **more)


def rows_after(daemon: Daemon, seq: int) -> list[tuple[str, dict[str, Any]]]:
    """Return what the audit trail says about policies since then."""
    names = ["plugin_failed", "plugin_denied", "changes_discarded", "call_changed"]
    found = daemon.audit(*(f"pipeline.{one}" for one in names))
    return [(one["event"], one["data"]) for one in found if one["seq"] > seq]


def outcomes(
    daemon: Daemon, site: PolicySite, shared: Project, acts: dict[str, Any]
) -> dict[str, Any]:
    """Make one call per act; returns all that can be compared about each."""
    site.put(FILLS, acts, spy("after", *CAPABILITIES), source=ACTS)
    shared.reload()  # labels stay with a session: both begin with none
    found: dict[str, Any] = {}
    for word in WORDS:
        site.seen_file.write_text("", encoding="utf-8")
        seq = max((one["seq"] for one in daemon.audit("pipeline.*")), default=0)
        body = {"agent": "primary", "tool": "file.read", "params": {"path": f"{word}.txt"}}
        answer = daemon.client.post(f"/api/v1/projects/{shared.id}/tools/call", json=body).json()
        seen = [
            {
                "payload": one["payload"],
                "http": one["extensions"]["http"],
                "security": one["extensions"]["security"],
                "custom": one["extensions"]["custom"],
                "agent": one["extensions"]["agent"]["agent_id"],
                "environment": one["extensions"]["request"]["environment"],
            }
            for one in site.seen("after")
        ]
        error = answer.get("error", {})
        found[word] = {
            "seen": seen,
            "result": answer.get("result"),
            "error": (error.get("code"), error.get("message")),
            "rows": rows_after(daemon, seq),
        }
    return found


@pytest.fixture(scope="module")
def files(shared: Project) -> Project:
    """Return the shared project with a file for every act."""
    for word in [*WORDS, "b", "count", "dies", "hangs", "looks"]:
        shared.write(f"{word}.txt", f"{word}\n")
    return shared


@whole("EX-AMB-16", "EX-AMB-21")
@pytest.mark.parametrize("on_error", ["ignore", "fail"])
@pytest.mark.parametrize(
    "capabilities",
    [[], ["read_headers"], ["write_headers"], ["append_labels", "write_headers"]],
    ids=lambda some: "+".join(some) or "none",
)
def test_a_class_does_the_same_in_the_process_and_in_a_cage(
    daemon: Daemon, site: PolicySite, files: Project, capabilities: list[str], on_error: str
) -> None:
    here = outcomes(daemon, site, files, acting(False, *capabilities, on_error=on_error))
    caged = outcomes(daemon, site, files, acting(True, *capabilities, on_error=on_error))
    for word in WORDS:
        for one in (here[word], caged[word]):
            for event, data in one["rows"]:
                if event == "pipeline.plugin_failed":
                    data.pop("detail")  # the words of an error name the place
        assert caged[word] == here[word], word
    edited = caged["both"]["seen"][0]
    assert edited["payload"]["args"]["path"] == "b.txt"
    kept = {"x-new": "1"} if "write_headers" in capabilities else None
    assert (edited["http"]["headers"] == kept) is ("write_headers" in capabilities)
    assert edited["custom"] == {"mine": {"deep": [1, None]}}
    # What is done to the given objects themselves counts nowhere, unless it is given back: then
    # the payload and the custom slot count, and no other slot.
    paths = {word: caged[word]["seen"][0]["payload"]["args"]["path"] for word in IN_PLACE}
    assert paths == {**{word: f"{word}.txt" for word in IN_PLACE}, "given": "b.txt"}
    customs = {word: caged[word]["seen"][0]["custom"] for word in IN_PLACE}
    assert [word for word in IN_PLACE if "in-place" in customs[word]] == ["shown"]
    for word in IN_PLACE:
        slots = caged[word]["seen"][0]
        assert "x-in-place" not in slots["http"]["headers"]
        assert "in-place" not in slots["security"]["labels"]
    assert not caged["alike"]["rows"]
    labelled = "appended" in caged["label"]["seen"][0]["security"]["labels"]
    assert labelled is ("append_labels" in capabilities)
    headed = "x-team" in caged["header"]["seen"][0]["http"]["headers"]
    assert headed is ("write_headers" in capabilities)
    assert caged["deny"]["error"][0] == "pipeline_refused"
    assert caged["forge"]["seen"][0]["environment"] is None
    assert (caged["boom"]["error"][0] == "plugin_error") is (on_error == "fail")


@whole("EX-AMB-19", "EX-AMB-21")
def test_hidden_values_never_enter_the_cage_nor_is_there_a_way_out_of_it(
    daemon: Daemon, site: PolicySite, files: Project
) -> None:
    tries = ["/etc/shadow", "/home", str(files.root), str(daemon.home), str(site.file)]
    port = int(daemon.url.rpartition(":")[2])
    options = {"tries": tries, "port": port}
    found: list[dict[str, Any]] = []
    for capabilities in ([], CAPABILITIES):
        looks = acting(True, *capabilities, config=options)
        site.put(FILLS, looks, spy("after"), source=ACTS)
        files.call("file.read", path="looks.txt")
        found.append(site.view("after")["custom"])
    blind, seeing = found
    assert blind["found"] == ["MARK-shown-custom-000003"]
    assert set(blind["reach"].values()) == {False}, blind["reach"]
    assert seeing["found"] == [
        "MARK-hidden-header-000001",
        "MARK-hidden-label-000002",
        PERSON,
        "MARK-shown-custom-000003",
    ], "the search itself works"
    assert set(seeing["reach"].values()) == {False}
    told = (ROOT / "docs/explanation/why-extensions-are-filtered.md").read_text(encoding="utf-8")
    assert "same process" in told
    assert "kind: caged" in told


def workers(daemon: Daemon) -> list[int]:
    """Return the processes below the daemon that run a caged policy."""
    found: list[int] = []
    todo = [daemon.pid]
    while todo:
        pid = todo.pop()
        try:
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"kaged.pipeline.worker" in words and b"--" not in words:
            found.append(pid)
        todo += [int(one) for one in below.split()]
    return found


@whole("EX-AMB-21")
@pytest.mark.parametrize("on_error", ["ignore", "fail"])
def test_a_worker_that_dies_in_mid_call_is_a_failed_policy_and_the_next_call_has_a_fresh_one(
    daemon: Daemon, site: PolicySite, files: Project, tmp_path: Path, on_error: str
) -> None:
    options = {"cage": {"write": [str(tmp_path)]}, "out": str(tmp_path)}
    acts = acting(True, config=options, on_error=on_error, timeout_s=30)
    site.put(acts, spy("after"), source=ACTS)

    def count() -> int:
        site.seen_file.write_text("", encoding="utf-8")
        files.call("file.read", path="count.txt")
        return int(site.view("after")["custom"]["calls"])

    assert (count(), count()) == (1, 2), "one worker for many calls"
    for death in ("dies", "hangs"):
        with ThreadPoolExecutor(1) as pool:
            body = {"agent": "primary", "tool": "file.read", "params": {"path": f"{death}.txt"}}
            place = f"/api/v1/projects/{files.id}/tools/call"
            going = pool.submit(daemon.client.post, place, json=body)
            if death == "hangs":
                wait_for((tmp_path / "hangs").exists)
                for pid in workers(daemon):
                    os.kill(pid, signal.SIGKILL)
            answer = going.result()
        assert (answer.status_code == 200) is (on_error == "ignore"), answer.text
        if on_error == "fail":
            assert answer.json()["error"]["code"] == "plugin_error"
        assert count() == 1, "a fresh worker counts from one"
    failed = [one["data"] for one in daemon.audit("pipeline.plugin_failed")]
    assert [one["on_error"] for one in failed if one["plugin"] == "acts"][-2:] == [on_error] * 2


@whole("EX-AMB-21")
def test_an_external_policy_is_asked_on_its_mcp_server_under_the_same_rules(
    daemon: Daemon, site: PolicySite, files: Project
) -> None:
    table = {
        "proto": "STDIO",
        "cmd": [os.path.realpath(sys.executable), str(SERVER)],
        "env": {"PYTHONPATH": str(LIBRARIES)},
        "cage": {"read": [str(LIBRARIES), str(SERVER)]},
    }

    def external(name: str, *capabilities: str, **more: Any) -> dict[str, Any]:
        conditions = [{"tools": [more.pop("tool")]}]
        return entry(name, "external", *capabilities, mcp=table, conditions=conditions, **more)

    site.put(
        FILLS,
        external("denies", tool="file.create"),
        external("nonsense", tool="search.grep"),
        external("edits", "write_headers", tool="search.glob"),
        gives(
            "PluginResult(modified_payload=payload.model_copy(update={'args':"
            " {n: v for n, v in payload.args.items() if n != 'n'}}))",
            name="trims",
        ),
        spy("after", *CAPABILITIES),
    )
    refused = files.fail("file.create", path="made.txt", content="x")
    assert refused["code"] == "pipeline_refused"
    denied = [one["data"] for one in daemon.audit("pipeline.plugin_denied")]
    assert [one["violation_code"] for one in denied if one["plugin"] == "denies"] == ["NOPE"]
    assert files.fail("search.grep", pattern="b")["code"] == "plugin_error"
    assert site.seen("after") == []
    files.call("search.glob", pattern="b.txt")
    after = site.view("after")
    assert after["http"]["headers"] == {
        "authorization": "MARK-hidden-header-000001",
        "x-new": "1",
    }
    assert after["custom"] == {"mine": 1}
    assert after["request"]["environment"] is None
    slots = [
        one["data"]["slots"]
        for one in daemon.audit("pipeline.changes_discarded")
        if one["data"]["plugin"] == "edits"
    ]
    assert slots == [{"request": 1}]


@whole("EX-AMB-21")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"kind": "wasm"}, ["wasm", "dotted", "caged", "external"]),
        ({"kind": "isolated_venv"}, ["isolated_venv", "caged"]),
        ({"kind": "external", "grpc": {"target": "x"}}, ["transport"]),
        ({"kind": "external"}, ["mcp"]),
        ({"kind": "external", "mcp": {"proto": "SSE", "url": "http://x"}}, ["STDIO"]),
        ({"kind": "subprocess.Popen"}, ["subprocess"]),
        ({"kind": "caged", "config": {}}, ["class_name"]),
    ],
    ids=lambda one: json.dumps(one) if isinstance(one, dict) else "",
)
def test_every_other_kind_or_transport_is_refused_at_load(
    site: PolicySite, bad: dict[str, Any], words: list[str]
) -> None:
    problems = site.refused({"name": "odd", "hooks": [PRE], **bad})
    text = " ".join(problems)
    assert [word for word in words if word.lower() not in text.lower()] == [], text

"""What is on record of calls on accounts: one row each, complete, and never what was said."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import exactly, wait_for
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    code_of,
    invoking,
    linking,
    operation,
    result_of,
    somebody,
    step,
)

SECRET_INPUT = "the-words-of-a-letter"
SECRET_OUTPUT = "the-words-of-an-answer"
DOWN = "capability_backend_unavailable"
COMMON = {
    *("request_id", "outcome", "user_id", "chat_id", "chat_type", "skill", "token_id"),
    *("capability.id", "account_ref", "duration_ms", "error.code"),
}
FIELDS = {
    "capability_invoke": {*COMMON, "operation", "mutating", "input_keys"},
    "capability_auth_begin": {*COMMON, "flow_id"},
    "capability_auth_complete": {*COMMON, "flow_id"},
    "capability_output_rejected": {"request_id", "capability.id", "operation", "path"},
    "capability_provider_registered": {"provider", "capabilities"},
    "capability_provider_unavailable": {"provider", "reason"},
    "capability_token_rejected": {"reason", "method"},
}


@pytest.fixture(scope="module")
def post(module_path: Path) -> Bridge:
    ops = [
        operation("echo"),
        operation("said", requires_auth=False),
        operation("leak", requires_auth=False),
        operation("gone", requires_auth=False),
        operation("send", requires_auth=False, mutating=True),
    ]
    plan = {
        "definitions": [
            capability("post.box", *ops),
            capability("post.private", operation("said", requires_auth=False), sensitive=True),
        ],
        "operations": {
            "said": {"output": {"text": SECRET_OUTPUT}},
            "leak": {"output": {"access_token": SECRET_OUTPUT}},
            "gone": {"raw": f"{SECRET_OUTPUT} is no JSON"},
            "send": {"append": str(module_path / "sent.txt")},
        },
    }
    return Bridge(module_path, "post", plan)


@pytest.fixture(scope="module")
def broken(module_path: Path) -> Bridge:
    return Bridge(module_path, "broken", {"definitions_raw": "no"})


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], post: Bridge, broken: Bridge) -> Desk:
    assert broken.name != post.name
    return desks(post, broken).open()


def send(word: str, key: str | None = None) -> dict[str, Any]:
    named = {} if key is None else {"idempotency_key": key}
    return invoking("post.box", "send", input={"word": word}, **named)


@whole("SC-AMB-31", "SC-AUD-01")
def test_every_kind_of_event_has_its_fields_and_none_of_the_words(desk: Desk) -> None:
    ann = somebody()
    answers = desk.asks(
        ann,
        *linking("post.box", "work"),
        invoking("post.box", input={"text": SECRET_INPUT, "to": [SECRET_INPUT]}),
        invoking("post.box", "said"),
        invoking("post.box", "leak"),
        invoking("post.box", "gone"),
        invoking("post.private", "none"),
        send(SECRET_INPUT, "the-key-itself"),
        send(SECRET_INPUT, "the-key-itself"),
        {**step("list"), "token": "a.b.c"},
        invoking("broken.box", "x"),
    )
    result_of(answers[2])
    mine = desk.audit(ann)
    rows = {name: [one["data"] for one in desk.daemon.audit(name)] for name in FIELDS}
    for name, wanted in FIELDS.items():
        assert rows[name], name
        for row in rows[name]:
            assert wanted <= set(row), (name, row)
    # One final row a call, in the order of the calls, and one for what is about to change things.
    assert [one["outcome"] for one in desk.audit(ann, "capability_invoke")] == [
        "ok",
        "ok",
        "error",
        "error",
        "denied",
        "ok",
        "replayed",
        "error",
    ]
    assert len(desk.audit(ann, "capability_invoke_intent")) == 1
    exactly(8, lambda: desk.audit(ann, "capability_invoke"))
    first = desk.audit(ann, "capability_invoke")[0]
    assert sorted(first["input_keys"]) == ["text", "to"]
    assert (first["account_ref"], first["chat_type"]) == ("acct_work", "private")
    assert (first["skill"], first["mutating"], first["error.code"]) == (None, False, None)
    assert first["duration_ms"] >= 0
    assert {one["outcome"] for one in mine if "outcome" in one} <= {
        *("ok", "denied", "error", "replayed"),
    }
    everything = json.dumps(desk.daemon.audit())
    for secret in (SECRET_INPUT, SECRET_OUTPUT, "the-key-itself", "agreed", "is no JSON"):
        assert secret not in everything, secret
    # The export says the same, and the chain of rows holds.
    desk.daemon.cli("audit", "verify")


@contextmanager
def broken_sink(desk: Desk) -> Generator[None]:
    """Let the store refuse every new row of the audit log for a while."""
    [file] = desk.daemon.home.rglob("*.db")
    store = sqlite3.connect(file, timeout=30)
    store.execute(
        "CREATE TRIGGER no_rows BEFORE INSERT ON audit_events"
        " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    )
    store.commit()
    try:
        yield
    finally:
        store.execute("DROP TRIGGER no_rows")
        store.commit()
        store.close()


@whole("SC-AMB-31")
def test_what_cannot_be_recorded_is_not_done(
    own_desk: Callable[..., Desk], post: Bridge, tmp_path: Path
) -> None:
    plan = json.loads(post.plan_file.read_text(encoding="utf-8"))
    plan["operations"]["send"] = {"append": str(tmp_path / "sent.txt")}
    bridge = Bridge(tmp_path, "post", plan)
    desk = own_desk(bridge).open()
    # In one command, begun before: what starts a command is on record as well.
    desk.invoke(somebody(), "post.box", "said")
    before = len(bridge.calls())
    desk.project.write(
        "slow.py",
        "import os, runpy, sys, time\n"
        "open('ready', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "sys.argv = ['caller.py', 'job.json']\n"
        "runpy.run_path('caller.py', run_name='__main__')\n",
    )
    job = {
        "conversations": [
            [send("lost"), invoking("post.private", "said"), invoking("post.box", "said")]
        ]
    }
    desk.project.write("job.json", json.dumps(job))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(desk.run, somebody(), "python3 slow.py")
        wait_for((desk.project.root / "ready").exists)
        with broken_sink(desk):
            (desk.project.root / "go").touch()
            done = running.result()
    [answers] = json.loads(done["stdout"])
    mutating, sensitive, plain = answers
    assert code_of(mutating) == DOWN
    assert "audit" in mutating["error"]["message"]
    assert code_of(sensitive) == DOWN
    assert result_of(plain)["output"] == {"text": SECRET_OUTPUT}
    assert not (tmp_path / "sent.txt").exists()
    assert len(bridge.calls()) == before + 1
    # Later, with a log again, the same call is done.
    body = {"agent": "primary", "tool": "shell.bash", "params": {"command": "true"}}
    url = f"/api/v1/projects/{desk.project.id}/tools/call"
    wait_for(lambda: desk.front_end.post(url, json=body).is_success, "an audit log")
    result_of(desk.asks(somebody(), send("kept"))[0])
    assert (tmp_path / "sent.txt").read_text(encoding="utf-8").split() == ["kept"]

"""A change happens once, whoever repeats it; and what is remembered when the host is killed."""

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
    operation,
    result_of,
    somebody,
    step,
)

UNKNOWN = "capability_outcome_unknown"


def plan(folder: Path) -> dict[str, Any]:
    names = ("note", "write", "slow", "crash", "hang", "refuse")
    ops = [operation(name, mutating=True, requires_auth=False) for name in names]
    ops += [operation("owned", mutating=True), operation("read", requires_auth=False)]
    return {
        "definitions": [capability("ledger.book", *ops), capability("ledger.other", *ops)],
        "operations": {
            "note": {"append": str(folder / "note.txt")},
            "crash": {"append": str(folder / "crash.txt"), "exit": 9},
            "hang": {"append": str(folder / "hang.txt"), "sleep": str(folder / "hang.pid")},
            "refuse": {"error": {"code": "capability_invalid_input", "message": "no such word"}},
            "slow": {"append": str(folder / "slow.txt"), "pause": 1.0},
        },
        "complete": {"credential_material": {"credential_key": "material-of-the-link"}},
    }


def ledger(folder: Path, **section: Any) -> Bridge:
    return Bridge(folder, "ledger", plan(folder), **section)


def words(folder: Path, name: str) -> list[str]:
    file = folder / f"{name}.txt"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


@pytest.fixture(scope="module")
def bridge(module_path: Path) -> Bridge:
    return ledger(module_path, timeout_seconds=6)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], bridge: Bridge) -> Desk:
    assert bridge.name == "ledger"
    return desks(bridge).open()


def note(word: str, key: str | None, op: str = "note", **more: Any) -> dict[str, Any]:
    named = {} if key is None else {"idempotency_key": key}
    return invoking("ledger.book", op, input={"word": word}, **named, **more)


@whole("SC-RPC-12", "SC-AMB-19")
def test_a_repeat_returns_what_the_first_one_said_and_does_nothing(
    desk: Desk, module_path: Path
) -> None:
    ann, bob = somebody(), somebody()
    first, again, other = desk.asks(
        ann, note("boat", "k-1"), note("boat", "k-1"), note("rope", "k-1")
    )
    one, two = result_of(first), result_of(again)
    assert "replayed" not in one
    assert two == {**one, "replayed": True}
    assert code_of(other) == "capability_idempotency_conflict"
    assert words(module_path, "note").count("boat") == 1
    assert "rope" not in words(module_path, "note")
    # The key is one person's, one capability's, one operation's; in another cage it is the same.
    assert desk.ask(ann, **_call(note("boat", "k-1")))["replayed"] is True
    more = desk.asks(
        ann,
        invoking("ledger.other", "note", input={"word": "boat"}, idempotency_key="k-1"),
        note("boat", "k-2"),
        note("boat", "k-1", "write"),
    )
    for answer in (*more, *desk.asks(bob, note("boat", "k-1"))):
        assert "replayed" not in result_of(answer)
    assert len(exactly(4, lambda: [w for w in words(module_path, "note") if w == "boat"])) == 4
    rows = desk.audit(ann, "capability_invoke")
    outcomes = [row["outcome"] for row in rows]
    assert outcomes == ["ok", "replayed", "denied", "replayed", "ok", "ok", "ok"]
    # Each account has its own calls as well.
    for hint in ("one", "two"):
        desk.link(ann, "ledger.book", hint)
    owned = [note("boat", "k-1", "owned", account_ref=ref) for ref in ("acct_one", "acct_two") * 2]
    replayed = [result_of(one).get("replayed", False) for one in desk.asks(ann, *owned)]
    assert replayed == [False, False, True, True]


def _call(request: dict[str, Any]) -> dict[str, Any]:
    return {"method": request["method"].removeprefix("capability."), **request["params"]}


@whole("SC-AMB-19")
def test_two_at_the_same_moment_with_one_key_are_one_call(desk: Desk, module_path: Path) -> None:
    ann = somebody()
    answers = desk.talk(ann, *[[note("together", "k-race", "slow")]] * 3)
    results = [result_of(one) for [one] in answers]
    assert sorted(bool(one.get("replayed")) for one in results) == [False, True, True]
    assert len({one["request_id"] for one in results}) == 1
    assert words(module_path, "slow") == ["together"]


@whole("SC-AMB-19")
@pytest.mark.parametrize("op", ["crash", "hang"])
def test_what_may_have_happened_is_not_done_again(desk: Desk, module_path: Path, op: str) -> None:
    ann = somebody()
    first, again = desk.asks(ann, note(op, f"k-{op}", op), note(op, f"k-{op}", op))
    assert code_of(first) == "capability_backend_unavailable"
    assert code_of(again) == UNKNOWN
    assert words(module_path, op) == [op]


@whole("SC-AMB-19")
def test_reading_only_passes_the_key_on(desk: Desk, bridge: Bridge) -> None:
    ann = somebody()
    before = len(bridge.asked("invoke", operation="read"))
    one, two = desk.asks(ann, *[note("x", "k-read", "read")] * 2)
    assert "replayed" not in result_of(two)
    assert result_of(one)["request_id"] != result_of(two)["request_id"]
    assert result_of(two)["output"]["key"] == "k-read"
    assert len(bridge.asked("invoke", operation="read")) == before + 2
    # What the provider refused before doing anything is refused the same way again.
    refused = desk.asks(ann, *[note("x", "k-no", "refuse")] * 2)
    assert [code_of(one) for one in refused] == ["capability_invalid_input"] * 2


@whole("SC-SEC-04", "SC-AMB-19")
def test_a_repeat_does_not_say_what_has_become_a_secret_since(desk: Desk, bridge: Bridge) -> None:
    later = "k3y-of-tomorrow-7f21c0"
    words = {"code": "capability_invalid_input", "message": f"the code {later} is used up"}
    refusing = note("x", "k-refused", "owned", account_ref="acct_other")
    telling = note(later, "k-told", "owned", account_ref="acct_one")
    usual = plan(bridge.plan_file.parent)
    ann = somebody()
    for hint in ("one", "other"):
        desk.link(ann, "ledger.book", hint)
    told, again = desk.asks(ann, telling, telling)
    assert result_of(again)["output"] == result_of(told)["output"]
    assert later in str(told)
    try:
        bridge.plan({**usual, "operations": {"owned": {"error": words}}})
        assert later in str(desk.asks(ann, refusing)[0])
        # The service hands out what it has talked about, and both accounts are linked anew.
        bridge.plan({**usual, "complete": {"credential_material": {"credential_key": later}}})
        for hint in ("one", "other"):
            desk.link(ann, "ledger.book", hint)
    finally:
        bridge.plan(usual)
    asked = len(bridge.asked("invoke", operation="owned"))
    kept, refused = desk.asks(ann, telling, refusing)
    assert code_of(kept) == "capability_invalid_output"
    assert code_of(refused) == "capability_invalid_input"
    assert later not in f"{kept}{refused}{desk.audit(ann, 'capability_invoke')}"
    assert len(bridge.asked("invoke", operation="owned")) == asked


@whole("SC-AMB-40")
def test_a_killed_host_remembers_flows_accounts_and_calls(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    bridge = ledger(tmp_path, timeout_seconds=60)
    desk = own_desk(bridge).open()
    ann, bob = somebody(), somebody()
    flow = desk.ask(ann, "auth.begin", capability="ledger.book", account_hint="work")["flow_id"]
    desk.link(bob, "ledger.book", "his")
    done = desk.ask(ann, **_call(note("boat", "k-done")))
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(_swallowed, desk, note("once", "k-killed", "hang"), bob)
        wait_for((tmp_path / "hang.pid").exists)
        desk.daemon.kill()
        assert hanging.result() is None
    desk.reopen(kill=True)
    # The flow completes, the account works, what was done is known and what ran is unknown.
    left = desk.ask(ann, "auth.list")["flows"]
    assert [one["flow_id"] for one in left] == [flow]
    assert desk.ask(ann, "auth.complete", flow_id=flow, code="x")["account_ref"] == "acct_work"
    assert desk.invoke(bob, "ledger.book", "owned")["account"] == "acct_his"
    again = desk.ask(ann, **_call(note("boat", "k-done")))
    assert again == {**done, "replayed": True}
    asked = len(bridge.calls())
    assert code_of(desk.asks(bob, note("once", "k-killed", "hang"))[0]) == UNKNOWN
    assert len(bridge.calls()) == asked
    assert words(tmp_path, "hang") == ["once"]
    assert words(tmp_path, "note") == ["boat"]
    # An account outlives a second end, a gentle one.
    desk.reopen()
    assert desk.invoke(ann, "ledger.book", "owned")["account"] == "acct_work"


def _swallowed(desk: Desk, request: dict[str, Any], person: Any) -> None:
    """Ask, and take it that the host dies meanwhile."""
    try:
        desk.asks(person, request)
    except Exception:  # noqa: BLE001 - whatever a client sees when its host is killed
        return


@contextmanager
def store_of(desk: Desk) -> Generator[sqlite3.Connection]:
    """Open the store of a host that does not run."""
    [file] = desk.daemon.home.rglob("*.db")
    store = sqlite3.connect(file)
    yield store
    store.commit()
    store.close()


@whole("SC-AMB-41")
def test_a_credential_that_was_changed_or_moved_is_refused(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    bridge = ledger(tmp_path)
    desk = own_desk(bridge).open()
    people = {name: somebody() for name in ("fine", "flipped", "moved", "source")}
    for person in people.values():
        desk.link(person, "ledger.book")
        desk.invoke(person, "ledger.book", "owned")
    desk.stop()
    # The key lies outside the store, and the store without it says nothing.
    [file] = desk.daemon.home.rglob("*.db")
    stored = file.read_bytes()
    assert b"material-of-the-link" not in stored
    keys = [one for one in desk.daemon.home.rglob("*") if one.is_file() and "vault" in one.name]
    assert keys
    assert all(one != file for one in keys)
    assert all(one.stat().st_mode & 0o077 == 0 for one in keys)
    with store_of(desk) as store:
        found = dict(store.execute("SELECT user_id, sealed FROM service_vault").fetchall())
        flipped = bytearray(found[people["flipped"].user])
        flipped[-1] ^= 1
        for name, sealed in (
            ("flipped", bytes(flipped)),
            ("moved", found[people["source"].user]),
        ):
            store.execute(
                "UPDATE service_vault SET sealed = ? WHERE user_id = ?", (sealed, people[name].user)
            )
    desk.open()
    for name in ("flipped", "moved"):
        before = len(bridge.calls())
        assert desk.code(people[name], "ledger.book", "owned") in {
            "capability_backend_unavailable",
            "capability_auth_required",
        }, name
        assert len(bridge.calls()) == before
    for name in ("fine", "source"):
        assert desk.invoke(people[name], "ledger.book", "owned")["account"] == "acct_default"


@whole("SC-AMB-06")
def test_the_words_of_a_fault_stay_inside_the_host(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    """The store loses its tables while the host runs: nobody in a cage learns what they were."""
    desk = own_desk(ledger(tmp_path)).open()
    desk.invoke(somebody(), "ledger.book", "read")
    [file] = desk.daemon.home.rglob("*.db")
    store = sqlite3.connect(file)
    for table in ("service_accounts", "service_flows", "service_calls"):
        store.execute(f"ALTER TABLE {table} RENAME TO {table}_gone")
    store.commit()
    store.close()
    answers = desk.asks(
        somebody(),
        step("list"),
        step("auth.list"),
        invoking("ledger.book", "owned"),
        note("x", "k"),
        step("auth.begin", capability="ledger.book"),
        step("auth.complete", flow_id="caf_" + "0" * 32, code="x"),
        step("auth.poll", flow_id="caf_" + "0" * 32),
        step("auth.revoke", capability="ledger.book", account_ref="x"),
    )
    for one in answers:
        assert code_of(one) in {"capability_internal_error", "capability_backend_unavailable"}, one
        said = json.dumps(one).lower()
        for word in ("service_", "sqlite", "select", "table", "traceback", str(file.parent)):
            assert word not in said, one
    # One that needs none of that still works on the same channel.
    assert desk.invoke(somebody(), "ledger.book", "read")["account"] is None

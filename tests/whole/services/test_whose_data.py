"""Accounts, flows and calls belong to one person each, whatever the others try."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.services import (
    GUESTS,
    PYTHON,
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    invoking,
    linking,
    operation,
    provider_toml,
    result_of,
    somebody,
    step,
)

EXAMPLE = Path(__file__).parents[3] / "plugins" / "examples" / "letters-bridge" / "bridge.py"
LIST = "ash-sb capability invoke -c letters.box -o list"
TABLES = ("service_accounts", "service_vault", "service_flows", "service_calls")


@pytest.fixture(scope="module")
def gog(module_path: Path) -> Bridge:
    ops = [operation("echo"), operation("note", mutating=True)]
    plan = {
        "definitions": [capability("gog.email", *ops), capability("gog.calendar", *ops)],
        "complete": {"credential_material": {"credential_key": "the-material-of-a-link"}},
        "operations": {"note": {"append": str(module_path / "notes.txt")}},
    }
    return Bridge(module_path, "gog", plan)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], gog: Bridge, module_path: Path) -> Desk:
    letters = {"ann": ["Dear Ann, the boat leaves at nine."], "bob": ["Bob, bring rope."]}
    (module_path / "letters.json").write_text(json.dumps(letters), encoding="utf-8")
    more = provider_toml(
        "letters",
        command=[sys.executable, "-c", SHIM, str(EXAMPLE)],
        env={"LETTERS": str(module_path / "letters.json")},
    )
    more += provider_toml(
        "stays", command=[*PYTHON, str(GUESTS / "bridge_g2.py")], mode="persistent"
    )
    return desks(gog, more=more).open()


# The example calls its namespace `post`; here it is another one's.
SHIM = "import sys; exec(open(sys.argv[1]).read().replace('post.box', 'letters.box'))"


def rows(desk: Desk, table: str, user: str) -> list[tuple[Any, ...]]:
    """Return what lies in the store about somebody, byte by byte."""
    [file] = desk.daemon.home.rglob("*.db")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
        found = store.execute(f"SELECT * FROM {table} WHERE user_id = ?", (user,))
        return sorted(found.fetchall(), key=repr)


@whole("SC-ISO-01", "SC-ISO-06")
def test_every_record_has_a_person_a_capability_and_an_account(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    for person, hint in ((ann, "work"), (ann, "home"), (bob, "work")):
        assert desk.link(person, "gog.email", hint) == f"acct_{hint}"
    kept = {
        (person.user, one["capability"], one["account_ref"])
        for person in (ann, bob)
        for one in desk.accounts(person.user)
    }
    assert kept == {
        (ann.user, "gog.email", "acct_work"),
        (ann.user, "gog.email", "acct_home"),
        (bob.user, "gog.email", "acct_work"),
    }
    vault = {row[:3] for person in (ann, bob) for row in rows(desk, "service_vault", person.user)}
    assert vault == kept
    # Bob links his again and takes it back: nothing of Ann's changes.
    before = {table: rows(desk, table, ann.user) for table in TABLES}
    desk.link(bob, "gog.email", "work")
    desk.ask(bob, "auth.revoke", capability="gog.email", account_ref="acct_work")
    assert {table: rows(desk, table, ann.user) for table in TABLES} == before
    assert desk.accounts(bob.user) == []
    assert rows(desk, "service_vault", bob.user) == []
    assert desk.invoke(ann, "gog.email", account_ref="acct_work")["account"] == "acct_work"


@whole("SC-ISO-04", "SC-ISO-07")
def test_no_method_reads_or_changes_what_is_somebody_elses(desk: Desk, gog: Bridge) -> None:
    ann, bob = somebody(), somebody()
    desk.link(ann, "gog.email", "hers")
    flow = desk.ask(ann, "auth.begin", capability="gog.calendar", account_hint="pending")
    desk.ask(
        ann,
        "invoke",
        capability="gog.email",
        operation="note",
        input={"word": "ann"},
        idempotency_key="same-key",
    )
    before = {table: rows(desk, table, ann.user) for table in TABLES}
    assert all(before.values())
    asked = len(gog.calls())
    answers = desk.asks(
        bob,
        step("list", include_unavailable=True, user_id=ann.user),
        invoking("gog.email"),
        invoking("gog.email", account_ref="acct_hers"),
        invoking("gog.email", "note", input={"word": "ann"}, idempotency_key="same-key"),
        step("auth.list", account_hint="pending", user_id=ann.user),
        step("auth.complete", flow_id=flow["flow_id"], code="x"),
        step("auth.complete_callback", code="x", capability="gog.calendar"),
        step("auth.poll", flow_id=flow["flow_id"]),
        step("auth.revoke", capability="gog.email", account_ref="acct_hers"),
    )
    listed = result_of(answers[0])["capabilities"]
    assert {one["authenticated"] for one in listed} == {False}
    assert all(one["linked_accounts"] == [] for one in listed)
    assert result_of(answers[4]) == {"flows": []}
    assert [code_of(one) for index, one in enumerate(answers) if index not in {0, 4}] == [
        "capability_auth_required",
        "capability_auth_required",
        "capability_auth_required",
        "capability_auth_flow_invalid",
        "capability_auth_flow_invalid",
        "capability_auth_flow_invalid",
        "capability_auth_required",
    ]
    assert len(gog.calls()) == asked
    assert "acct_hers" not in json.dumps([one for one in answers if "result" in one])
    # The front end cannot do it for him either.
    body = {"user_id": ann.user, "capability": "gog.email", "account_ref": "acct_hers"}
    got = desk.front_end.post("/api/v1/services/accounts/revoke", json=body, headers=bob.headers)
    assert got.status_code == 404
    got = desk.front_end.get(f"/api/v1/services/accounts?user_id={ann.user}", headers=bob.headers)
    assert got.json()["accounts"] == []
    assert {table: rows(desk, table, ann.user) for table in TABLES} == before


@whole("SC-ISO-05")
def test_two_people_at_once_each_get_their_own(desk: Desk) -> None:
    people = [somebody(), somebody()]
    for one in people:
        begun, done = desk.asks(
            one,
            step("auth.begin", capability="stays.email", account_hint=one.user),
            step(
                "auth.complete",
                flow_id={"$": [0, "flow_id"]},
                callback_url=f"https://x.example/?code=c&state=state-{one.user}",
            ),
        )
        result_of(begun)
        result_of(done)

    def many(person: Person) -> list[Any]:
        calls = [invoking("stays.email", "whoami")] * 25
        return [one for found in desk.talk(person, *[calls] * 4) for one in found]

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(many, people))
    for person, found in zip(people, answers, strict=True):
        assert len(found) == 100
        outputs = [result_of(one)["output"] for one in found]
        assert {(one["user"], one["account"]) for one in outputs} == {
            (person.user, f"acct_{person.user}")
        }


@whole("SC-ISO-10", "SC-ISO-05")
def test_the_same_command_gives_each_person_their_own_letters(desk: Desk) -> None:
    """Two people, one command line, real ash-sb processes in real cages, at the same time."""
    ann, bob = Person("ann", "private", "c-ann"), Person("bob", "private", "c-bob")
    assert "capability_auth_required" in desk.run(ann, f"{LIST} 2>&1")["stdout"]
    agreed = step("auth.complete", flow_id={"$": [0, "flow_id"]}, code="agreed")
    desk.asks(ann, step("auth.begin", capability="letters.box"), agreed)
    assert "the boat leaves at nine" in desk.run(ann, LIST)["stdout"]
    bobs = desk.run(bob, f"{LIST} 2>&1")["stdout"]
    assert "capability_auth_required" in bobs
    assert "boat" not in bobs
    listed = desk.run(bob, "ash-sb capability list")["stdout"]
    assert "Authenticated: yes" not in listed
    assert "acct" not in listed
    desk.asks(bob, step("auth.begin", capability="letters.box"), agreed)
    loop = f"for n in 1 2 3 4; do {LIST} --json || exit 1; done"
    with ThreadPoolExecutor(2) as threads:
        said = list(threads.map(lambda who: desk.run(who, loop), (ann, bob)))
    for one, own in zip(
        said, ("Dear Ann, the boat leaves at nine.", "Bob, bring rope."), strict=True
    ):
        assert one["exit_code"] == 0, one
        answers = [json.loads(line) for line in one["stdout"].splitlines()]
        assert [answer["output"]["letters"] for answer in answers] == [[own]] * 4


PAIRS = [
    (("a.b", "gog.email", "c"), ("a", "gog.email", "b.c")),
    (("u", "gog.email", "x:y"), ("u", "gog.email", "x")),
    (("v", "gog.email", "x/y z"), ("v", "gog.email", "x/y")),
    (("w", "gog.email", "r"), ("w", "gog.calendar", "r")),
    (("p", "gog.email", "r"), ("p2", "gog.email", "r")),
    (("q+1", "gog.email", "r"), ("q-1", "gog.email", "r")),
    (("m@x.org", "gog.email", "r"), ("m@x", "gog.email", "org")),
    (("CASE", "gog.email", "R"), ("case", "gog.email", "r")),
]


@whole("SC-ISO-11")
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_different_keys_never_meet(
    desk: Desk, one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    """Accounts, pending flows and calls that happen once; taking one back leaves the other."""
    keys = (one, other)
    for user, id_, hint in keys:
        person = Person(f"{user}.k")
        answers = desk.asks(
            person,
            *linking(id_, hint),
            step("auth.begin", capability=id_, account_hint=f"{hint} pending"),
            invoking(
                id_,
                "note",
                account_ref=f"acct_{hint}",
                input={"word": f"{user} {id_} {hint}"},
                idempotency_key="one-key-for-all",
            ),
        )
        assert "replayed" not in result_of(answers[3])
        assert result_of(answers[3])["ok"] is True
        result_of(answers[2])
    for user, id_, hint in keys:
        found = [
            flow["account_hint"]
            for flow in desk.ask(
                Person(f"{user}.k"), "auth.list", capability=id_, account_hint=f"{hint} pending"
            )["flows"]
        ]
        assert found == [f"{hint} pending"]

    def kept() -> set[tuple[str, str, str]]:
        return {
            (user, account["capability"], account["account_ref"].removeprefix("acct_"))
            for user in {key[0] for key in keys}
            for account in desk.accounts(f"{user.replace('+', '%2B')}.k")
        }

    assert kept() == set(keys)
    user, id_, hint = one
    desk.ask(Person(f"{user}.k"), "auth.revoke", capability=id_, account_ref=f"acct_{hint}")
    assert kept() == {other}
    user, id_, hint = other
    left = desk.invoke(Person(f"{user}.k"), id_, account_ref=f"acct_{hint}")
    assert left["account"] == f"acct_{hint}"


@whole("SC-ISO-08")
def test_a_credential_lies_encrypted_and_apart(desk: Desk) -> None:
    ann = somebody()
    desk.link(ann, "gog.email", "hidden")
    assert len(rows(desk, "service_vault", ann.user)) == 1
    everything = b"".join(
        file.read_bytes() for file in desk.daemon.home.rglob("*") if file.is_file()
    )
    assert b"acct_hidden" in everything
    assert b"the-material-of-a-link" not in everything

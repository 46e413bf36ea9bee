"""A person lets another use an account: only them, only for that, only as long as it is shared."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.people import Guest
from whole.harness.services import (
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    invoking,
    operation,
    result_of,
    somebody,
    step,
)

MAIL = "gog.email"
ALLOWED = """\
[capabilities]
share_accounts = true
[auth.front_end]
teams = "X-Kaged-Teams"
"""
SECRET = "the-material-of-a-link"
UNLINKED = "capability_auth_required"
DENIED = "capability_access_denied"


def _plan(folder: Path, email: str | None = "team@example.org") -> dict[str, Any]:
    ops = [operation("echo"), operation("note", mutating=True), operation("drop", mutating=True)]
    complete: dict[str, Any] = {"credential_material": {"credential_key": SECRET}}
    if email is not None:
        complete["metadata"] = {"account_name": "Team", "account_email": email}
    return {
        "definitions": [capability(MAIL, *ops), capability("gog.calendar", *ops)],
        "complete": complete,
        "operations": {
            "note": {"append": str(folder / "notes.txt")},
            "drop": {"append": str(folder / "drops.txt")},
        },
    }


@pytest.fixture(scope="module")
def gog(module_path: Path) -> Bridge:
    return Bridge(module_path, "gog", _plan(module_path), confirm=["email.drop"])


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], gog: Bridge) -> Desk:
    return desks(gog, more=ALLOWED).open()


@pytest.fixture
def guests() -> Iterator[Callable[..., Guest]]:
    """Yield a maker of clients of the front end of a desk."""
    made: list[Guest] = []

    def make(desk: Desk, person: Person, **said: str) -> Guest:
        made.append(Guest(desk.daemon, person, **said))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def guest(desk: Desk, guests: Callable[..., Guest]) -> Callable[..., Guest]:
    """Return a maker of clients of the front end of the desk that all share."""
    return functools.partial(guests, desk)


def sharing(account: str, **more: Any) -> dict[str, Any]:
    """Return what shares an account of `gog.email` for one operation, unless more is said."""
    return {"capability": MAIL, "account_ref": account, "operations": ["echo"], **more}


def shared(desk: Desk, who: Person) -> list[dict[str, Any]]:
    """Return the accounts of others that somebody's agent is shown."""
    [row] = [one for one in desk.ask(who, "list")["capabilities"] if one["id"] == MAIL]
    return list(row.get("shared_accounts", []))


def put(front: Callable[..., Guest], desk: Desk, *operations: str) -> tuple[Person, Person, str]:
    """Let Ann link an account and share it with Bob; returns both and the share."""
    ann, bob = somebody(), somebody()
    account = desk.link(ann, MAIL, "team")
    body = sharing(account, person=bob.user, operations=[*operations] or ["echo"])
    return ann, bob, str(front(ann).post("/services/shares", body)["share_id"])


@whole("SC-POL-17")
def test_only_the_named_person_operation_and_capability_work_until_it_ends(
    desk: Desk, gog: Bridge, guest: Callable[..., Guest]
) -> None:
    ann, bob, cy = somebody(), somebody(), somebody()
    account = desk.link(ann, MAIL, "team")
    desk.link(ann, "gog.calendar", "team")
    # Without a share there is nothing, whatever Bob says.
    assert desk.code(bob, MAIL, account_ref=account) == UNLINKED
    assert desk.code(bob, MAIL, account_ref="shr_0") == UNLINKED
    assert shared(desk, bob) == []
    made = guest(ann).post("/services/shares", sharing(account, person=bob.user))
    share = made["share_id"]
    # Bob is shown it, and uses it by its name alone.
    [shown] = shared(desk, bob)
    assert (shown["account_ref"], shown["shared_by"]) == (share, ann.user)
    assert shown["operations"] == ["echo"]
    code, out, _ = desk.ash(bob, "list")
    assert code == 0
    assert f"Shared by {ann.user}: {share} (operations: echo)" in out
    assert desk.code(bob, MAIL) == UNLINKED  # it is never chosen for him
    done = desk.invoke(bob, MAIL, account_ref=share)
    assert done["account"] == account
    [asked] = gog.asked("invoke", account_ref=account)
    assert SECRET not in json.dumps([done, shown, made])
    # The bridge sees the owner; nothing of Bob's chat.
    told = json.dumps(asked)
    assert bob.user not in told
    assert bob.chat_id not in told
    # Every other combination is refused before the bridge hears of it.
    before = len(gog.calls())
    answers = desk.asks(
        bob,
        invoking(MAIL, "note", account_ref=share, input={"word": "x"}),
        invoking("gog.calendar", account_ref=share),
        invoking(MAIL, account_ref=account),
        step("auth.revoke", capability=MAIL, account_ref=share),
        step("auth.revoke", capability=MAIL, account_ref=account),
    )
    assert [code_of(one) for one in answers] == [DENIED, DENIED, UNLINKED, UNLINKED, UNLINKED]
    assert desk.code(cy, MAIL, account_ref=share) == UNLINKED
    assert shared(desk, cy) == []
    assert len(gog.calls()) == before
    # Bob cannot pass it on, end it, or see when it was used.
    assert guest(bob).refused("POST", "/services/shares", sharing(account, person=cy.user)) == (
        404,
        "account_unknown",
    )
    assert guest(bob).refused("POST", "/services/shares", sharing(share, person=cy.user)) == (
        404,
        "account_unknown",
    )
    assert guest(bob).refused("DELETE", f"/services/shares/{share}")[0] == 404
    [row] = guest(bob).get("/services/shares")["shares"]
    assert (row["share_id"], row["last_used_by"]) == (share, None)
    assert guest(cy).get("/services/shares")["shares"] == []
    # Ann sees who used it, and ends it.
    [row] = guest(ann).get("/services/shares")["shares"]
    assert row["last_used_by"] == bob.user
    guest(ann).ask("DELETE", f"/services/shares/{share}").raise_for_status()
    assert desk.code(bob, MAIL, account_ref=share) == UNLINKED
    assert shared(desk, bob) == []
    assert guest(ann).get("/services/shares")["shares"] == []
    assert len(gog.calls()) == before
    # Ann's own use is as it was.
    assert desk.invoke(ann, MAIL)["account"] == account


@whole("SC-POL-17")
def test_each_use_is_on_record_for_the_owner_and_the_caller(
    desk: Desk, guest: Callable[..., Guest]
) -> None:
    ann, bob, share = put(guest, desk)
    desk.invoke(bob, MAIL, account_ref=share)
    desk.code(bob, MAIL, "note", account_ref=share, input={"word": "x"})
    [made] = desk.audit(ann, "capability_account_shared")
    assert (made["person"], made["operations"], made["share_id"]) == (bob.user, ["echo"], share)
    [use] = desk.audit(ann, "capability_shared_use")
    assert (use["used_by"], use["operation"], use["share_id"]) == (bob.user, "echo", share)
    well, refused = desk.audit(bob, "capability_invoke")
    assert (well["outcome"], well["account_owner"], well["share_id"]) == ("ok", ann.user, share)
    assert (refused["outcome"], refused["gate"], refused["share_id"]) == (
        "denied",
        "account",
        share,
    )
    place = f"/projects/{desk.project.id}/audit?limit=200"
    rows = [one["event"] for one in guest(ann).get(place)["items"]]
    assert rows.count("capability_shared_use") == 1
    assert "capability_invoke" not in rows  # that is Bob's, with his chat in it
    guest(ann).ask("DELETE", f"/services/shares/{share}").raise_for_status()
    [end] = desk.audit(ann, "capability_account_unshared")
    assert (end["reason"], end["share_id"]) == ("ended", share)


@whole("SC-POL-17")
def test_a_team_uses_it_while_the_front_end_says_that_they_are_in_it(
    desk: Desk, guest: Callable[..., Guest]
) -> None:
    ann, bob = somebody(), somebody()
    account = desk.link(ann, MAIL, "team")
    made = guest(ann).post("/services/shares", sharing(account, team="support"))
    params = {"capability": MAIL, "operation": "echo", "account_ref": made["share_id"]}
    job = {"conversations": [[{"method": "capability.invoke", "params": params}]]}
    desk.project.write("team.json", json.dumps(job))
    use = {
        "agent": "primary",
        "tool": "shell.bash",
        "params": {"command": "python3 caller.py team.json"},
    }

    def answer(**said: str) -> Any:
        place = f"/projects/{desk.project.id}/tools/call"
        done = guest(bob, **said).post(place, use)["result"]
        [[found]] = json.loads(done["stdout"])
        return found

    assert code_of(answer()) == UNLINKED
    assert result_of(answer(X_Kaged_Teams="support"))["output"]["account"] == account
    assert code_of(answer(X_Kaged_Teams="support2,other")) == UNLINKED
    assert code_of(answer()) == UNLINKED


@whole("SC-POL-17")
def test_what_needs_consent_asks_the_owner_and_nobody_else(
    desk: Desk, guest: Callable[..., Guest], module_path: Path
) -> None:
    ann, bob, share = put(guest, desk, "drop", "note")
    call = {"account_ref": share, "input": {"word": "letters"}, "idempotency_key": "k"}
    assert desk.code(bob, MAIL, "drop", **call) == "capability_mutation_not_confirmed"
    assert guest(bob).get("/services/approvals")["approvals"] == []
    [waiting] = guest(ann).get("/services/approvals")["approvals"]
    assert bob.user in waiting["summary"]
    assert "letters" in waiting["summary"]
    path = f"/services/approvals/{waiting['plan_id']}"
    assert guest(bob).refused("POST", path, {"decision": "confirm"})[0] == 404
    assert not (module_path / "drops.txt").exists()
    guest(ann).post(path, {"decision": "confirm"})
    # Her yes is for him: it does nothing for her own call, and once for his.
    own = {"account_ref": "acct_team", "input": {"word": "letters"}}
    assert desk.code(ann, MAIL, "drop", **own) == "capability_mutation_not_confirmed"
    assert desk.invoke(bob, MAIL, "drop", **call)["account"] == "acct_team"
    other = {**call, "idempotency_key": "k2"}
    assert desk.code(bob, MAIL, "drop", **other) == "capability_mutation_not_confirmed"
    assert len((module_path / "drops.txt").read_text(encoding="utf-8").splitlines()) == 1


@whole("SC-POL-17")
def test_a_share_ends_with_its_account_and_with_another_address(
    own_desk: Callable[..., Desk], guests: Callable[..., Guest], tmp_path: Path
) -> None:
    gog = Bridge(tmp_path, "gog", _plan(tmp_path))
    desk = own_desk(gog, more=ALLOWED).open()
    ann, bob = somebody(), somebody()
    front = functools.partial(guests, desk)
    account = desk.link(ann, MAIL, "team")
    share = front(ann).post("/services/shares", sharing(account, person=bob.user))["share_id"]
    # A second one of the same kind is refused, so that ending the first ends it.
    again = front(ann).refused("POST", "/services/shares", sharing(account, person=bob.user))
    assert again == (409, "account_share_exists")
    desk.link(ann, MAIL, "team")  # the same address: linked anew, and shared as before
    assert desk.invoke(bob, MAIL, account_ref=share)["account"] == account
    # It survives a restart; while the operator does not allow it, nothing is shared.
    desk.reopen()
    assert desk.invoke(bob, MAIL, account_ref=share)["account"] == account
    for email in ("other@example.org", None):
        gog.plan(_plan(tmp_path, email))
        desk.link(ann, MAIL, "team")
        assert desk.code(bob, MAIL, account_ref=share) == UNLINKED
        made = front(ann).post("/services/shares", sharing(account, person=bob.user))
        share = made["share_id"]
    ended = desk.audit(ann, "capability_account_unshared")
    assert [one["reason"] for one in ended] == ["linked anew"] * 2
    desk.ask(ann, "auth.revoke", capability=MAIL, account_ref=account)
    desk.link(ann, MAIL, "team")
    assert desk.code(bob, MAIL, account_ref=share) == UNLINKED
    assert front(ann).get("/services/shares")["shares"] == []
    assert desk.audit(ann, "capability_account_unshared")[-1]["reason"] == "account revoked"


@whole("SC-POL-17")
def test_nothing_is_shared_unless_the_operator_allows_it(
    own_desk: Callable[..., Desk], guests: Callable[..., Guest], tmp_path: Path
) -> None:
    gog = Bridge(tmp_path, "gog", _plan(tmp_path))
    desk = own_desk(gog, more=ALLOWED).open()
    ann, bob = somebody(), somebody()
    account = desk.link(ann, MAIL, "team")
    body = sharing(account, person=bob.user)
    share = guests(desk, ann).post("/services/shares", body)["share_id"]
    assert desk.invoke(bob, MAIL, account_ref=share)["account"] == account
    config = desk.daemon.home / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("share_accounts = true", "share_accounts = false"), "utf-8")
    desk.reopen()
    assert desk.code(bob, MAIL, account_ref=share) == UNLINKED
    assert shared(desk, bob) == []
    refused = guests(desk, ann).refused("POST", "/services/shares", body)
    assert refused == (403, "account_sharing_off")
    [row] = guests(desk, ann).get("/services/shares")["shares"]
    assert row["state"] == "off"
    assert desk.invoke(ann, MAIL)["account"] == account


def test_a_person_shares_so_often_and_no_more(desk: Desk, guest: Callable[..., Guest]) -> None:
    ann = somebody()
    account, front = desk.link(ann, MAIL, "team"), guest(ann)
    for number in range(100):
        front.post("/services/shares", sharing(account, person=f"somebody-{number}"))
    one_more = sharing(account, person="one-more")
    assert front.refused("POST", "/services/shares", one_more) == (409, "too_many_account_shares")
    shares = front.get("/services/shares?limit=60")
    assert len(shares["shares"]) == 60
    assert len(front.get(f"/services/shares?offset={shares['next_offset']}")["shares"]) == 40
    front.ask("DELETE", f"/services/shares/{shares['shares'][0]['share_id']}").raise_for_status()
    front.post("/services/shares", one_more)


@whole("SC-POL-17")
def test_the_operator_shares_and_ends_shares_at_a_terminal(
    desk: Desk, guest: Callable[..., Guest]
) -> None:
    ann, bob, hers = put(guest, desk)
    account = desk.link(Person(), MAIL, "mine")
    words = ("account", "share", MAIL, account, "--with", bob.user, "-o", "echo", "--expires", "8w")
    made = desk.daemon.cli(*words, "--json").json
    share = made["share_id"]
    assert made["expires_at"]
    assert desk.invoke(bob, MAIL, account_ref=share)["account"] == account
    listed = {one["share_id"]: one for one in desk.daemon.cli("account", "shares", "--json").json}
    assert listed[share]["last_used_by"] == bob.user
    assert listed[hers]["owner"] == ann.user
    # What is wrong is said before anything is shared.
    for more, code in (
        (("--with", bob.user, "-o", "nothing"), "account_share_invalid"),
        (("-o", "echo"), "account_share_invalid"),
        (("--with", bob.user, "--team", "t", "-o", "echo"), "account_share_invalid"),
        (("--with", bob.user, "-o", "echo"), "account_share_exists"),
    ):
        said = desk.daemon.cli("account", "share", MAIL, account, *more, code=None)
        assert f"[{code}]" in said.err, said
    words = ("account", "share", MAIL, "acct_team", "--with", bob.user, "-o", "echo")
    foreign = desk.daemon.cli(*words, code=None)
    assert "[account_unknown]" in foreign.err
    for one in (share, hers):
        assert "has ended" in desk.daemon.cli("account", "unshare", one).out
        assert desk.code(bob, MAIL, account_ref=one) == UNLINKED
    gone = desk.daemon.cli("account", "unshare", share, code=None)
    assert "[account_share_unknown]" in gone.err

"""What of a person's own accounts a group may read: what could be used in that group, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.people import Guest
from whole.harness.services import Bridge, Desk, Person, capability, operation, somebody


@pytest.fixture(scope="module")
def desk(module_path: Path, desks: Callable[..., Desk]) -> Desk:
    ops = [operation("echo")]
    plan = {
        "definitions": [
            capability("post.mail", *ops, sensitive=True),
            capability("post.board", *ops, allowed_chat_types=["private", "group"]),
            capability("post.free", *ops),
        ]
    }
    return desks(Bridge(module_path, "post", plan)).open()


@pytest.fixture
def come(desk: Desk) -> Iterator[Callable[[Person], Guest]]:
    made: list[Guest] = []

    def arrive(person: Person) -> Guest:
        made.append(Guest(desk.daemon, person))
        return made[-1]

    yield arrive
    for one in made:
        one.close()


def _listed(guest: Guest, path: str = "", method: str = "get") -> list[str]:
    found = getattr(guest, method)(f"/services/accounts{path}")
    return sorted(str(one["capability"]) for one in found["accounts"])


def test_in_a_group_only_the_accounts_are_shown_that_may_be_used_there(
    desk: Desk, come: Callable[[Person], Guest]
) -> None:
    ann, bob = somebody(), somebody()
    everything = ["post.board", "post.free", "post.mail"]
    for who in (ann, bob):
        for one in everything:
            desk.link(who, one)
    assert _listed(come(ann)) == everything
    for kind, open_there in (
        ("group", ["post.board", "post.free"]),
        ("supergroup", ["post.free"]),
        ("", ["post.free"]),
    ):
        there = come(ann.in_chat(kind))
        assert _listed(there) == open_there
        assert _listed(there, "?limit=1") == open_there[:1]
        assert _listed(there, "?limit=1&offset=1") == open_there[1:2]
        assert _listed(there, "/check", "post") == open_there
        # Naming whose they are shows nobody else's, and no more of one's own.
        assert _listed(there, f"?user_id={bob.user}") == open_there
    # The operator sees all of both.
    found = desk.daemon.get(f"/services/accounts?user_id={ann.user}")["accounts"]
    assert sorted(one["capability"] for one in found) == everything


def test_an_account_that_a_group_does_not_see_is_not_taken_back_from_there(
    desk: Desk, come: Callable[[Person], Guest]
) -> None:
    ann = somebody()
    desk.link(ann, "post.mail")
    [mine] = come(ann).get("/services/accounts")["accounts"]
    body = {name: mine[name] for name in ("user_id", "capability", "account_ref")}
    group = come(ann.in_chat("group"))
    assert group.refused("POST", "/services/accounts/revoke", body) == (404, "account_unknown")
    assert _listed(come(ann)) == ["post.mail"]
    assert come(ann).post("/services/accounts/revoke", body)["ok"] is True

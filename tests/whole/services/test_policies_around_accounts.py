"""Operations on accounts pass the policies, and what they return is labelled as untrusted."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import wait_for
from whole.harness.policies import POST, PRE, PolicySite, gives, spy
from whole.harness.services import Bridge, Desk, Person, capability, invoking, operation

ALICE, BOB = (Person(name, "private", f"chat-{name}") for name in ("alice", "bob"))
GUARD = {
    "name": "outsiders",
    "kind": "kaged.pipeline.policies.UntrustedContentGuard",
    "hooks": [PRE],
    "capabilities": ["read_labels"],
    "config": {"except_tools": ["shell.*"]},
}
NO_MAIL_OF_BOB = gives(
    "PluginResult(continue_processing=False, violation=PluginViolation("
    "reason='bob is away', description='', code='away'))"
    " if ext.security.subject.id == 'bob' and payload.name == 'gog.email.ping' else None",
    "read_subject",
    name="away",
)
SHORTENS = gives(
    "PluginResult(modified_payload=payload.model_copy(update={'result': {'cut': True}}))"
    " if payload.name == 'gog.email.ping' and context.global_context.user == 'alice' else None",
    "read_subject",
    name="shortens",
    hooks=[POST],
)


@pytest.fixture(scope="module")
def gog(module_path: Path) -> Bridge:
    plan = {
        "definitions": [
            capability(
                "gog.email",
                operation("ping", requires_auth=False),
                operation("send", requires_auth=False, mutating=True),
            )
        ]
    }
    return Bridge(module_path, "gog", plan)


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    return PolicySite(module_path / "policies")


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], gog: Bridge, site: PolicySite) -> Desk:
    made = desks(gog, more=site.config_toml()).open()
    site.daemon = made.daemon
    wait_for(site.loads)
    return made


def names(site: PolicySite) -> list[tuple[str, str, list[str]]]:
    """Return hook, name and labels of what the spy saw of operations, oldest first."""
    return [
        (one["hook"], one["payload"]["name"], one["extensions"]["security"]["labels"])
        for one in site.seen("spy")
        if one["payload"]["name"].startswith("gog.")
    ]


def test_policies_see_who_asks_what_and_the_answer_is_untrusted(
    desk: Desk, site: PolicySite
) -> None:
    site.put(spy("spy", "read_labels", "read_subject", hooks=[PRE, POST]))
    desk.invoke(ALICE, "gog.email", "ping", input={"a": 1})
    before, after = names(site)
    assert before == (PRE, "gog.email.ping", [])
    assert after == (POST, "gog.email.ping", ["untrusted"])
    (row, _) = [one for one in site.seen("spy") if one["payload"]["name"] == "gog.email.ping"]
    assert row["payload"]["args"] == {"a": 1}
    assert row["extensions"]["security"]["subject"]["id"] == "alice"
    (labelled,) = desk.daemon.audit("session.labelled")[-1:]
    assert labelled["data"]["source"] == "gog.email.ping"


def test_a_policy_refuses_one_person_and_changes_what_another_is_told(
    desk: Desk, site: PolicySite, gog: Bridge
) -> None:
    site.put(NO_MAIL_OF_BOB, SHORTENS)
    asked = len(gog.log("invoke"))
    error = desk.refusal(BOB, "invoke", capability="gog.email", operation="ping")
    assert error["data"]["code"] == "capability_access_denied"
    assert "bob is away" in error["message"]
    assert len(gog.log("invoke")) == asked
    assert desk.invoke(ALICE, "gog.email", "ping") == {"cut": True}


def test_an_operation_that_changes_something_waits_for_the_owner_of_the_account(
    desk: Desk, site: PolicySite, gog: Bridge
) -> None:
    """Alice's agent has read mail; before it sends any she is asked, and nobody else is."""
    site.put(GUARD)
    steps = invoking("gog.email", "ping"), invoking("gog.email", "send", input={})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        both = pool.submit(desk.asks, ALICE, *steps)
        (asked,) = wait_for(lambda: _waiting(desk), "the question")
        assert (asked["owner"], asked["title"]) == ("alice", "Let the agent call gog.email.send?")
        assert gog.asked("invoke", operation="send") == []
        digest = {"digest": asked["digest"], "answer": {"choice": "yes"}}
        desk.daemon.post(f"/inbox/{asked['id']}/answer", digest)
        read, sent = both.result(60)
    assert "result" in read
    assert "result" in sent
    assert len(gog.asked("invoke", operation="send")) == 1


def _waiting(desk: Desk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = desk.daemon.get("/inbox?kind=call_approval&state=pending")[
        "items"
    ]
    return found

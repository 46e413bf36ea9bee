"""Operations that wait for a yes, and what an operator does to accounts, providers and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import exactly, wait_for
from whole.harness.services import (
    Bridge,
    Desk,
    Person,
    capability,
    code_of,
    error_of,
    invoking,
    operation,
    result_of,
    somebody,
    step,
)

BOX = "mail.box"
SECRET = "sk-" + "a1B2" * 12


def plan() -> dict[str, Any]:
    """Return what the bridge offers: something that changes, and something that leaks."""
    operations = (
        operation("send", mutating=True),
        operation("read"),
        operation("leak", requires_auth=False),
    )
    return {
        "definitions": [capability(BOX, *operations)],
        "poll": {"status": "pending"},
        "operations": {"leak": {"output": {"note": SECRET}}},
    }


def ready(desk: Desk) -> None:
    """Wait until the bridge has said what it offers."""
    wait_for(lambda: [one for one in desk.providers() if one["available"]], "the provider")


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], module_path: Path) -> Desk:
    """Return a desk whose mail is sent only after a yes."""
    bridge = Bridge(
        module_path, "mail", plan(), confirm=["box.send"], max_concurrency=2, max_output_bytes=65536
    )
    made = desks(bridge, more="[capabilities]\nmax_bridges = 2\n").open()
    ready(made)
    return made


def send(word: str, **more: Any) -> dict[str, Any]:
    """Return a request to send something."""
    return invoking(BOX, "send", input={"word": word}, **more)


def waiting(desk: Desk, person: Person, answer: Any) -> str:
    """Return the plan that a refused operation waits for; there is one, and it is named."""
    assert code_of(answer) == "capability_mutation_not_confirmed"
    listed = desk.daemon.get("/services/approvals")["approvals"]
    [plan_id] = [one["plan_id"] for one in listed if one["user_id"] == person.user]
    assert plan_id in str(error_of(answer))
    return str(plan_id)


def decided(desk: Desk, person: Person) -> list[str]:
    """Return what was decided about somebody's operations, oldest first."""
    return [one["outcome"] for one in desk.audit(person, "capability_consent_decided")]


def test_a_yes_counts_once_for_exactly_what_was_shown(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    desk.link(ann, BOX)
    desk.link(bob, BOX)
    first, again = desk.asks(ann, send("boat"), send("boat"))
    plan_id = waiting(desk, ann, first)
    assert waiting(desk, ann, again) == plan_id, "asked once"
    desk.daemon.post(f"/services/approvals/{plan_id}", {"decision": "confirm"})
    other, mine, used = desk.asks(
        ann,
        send("rope", mutation_plan_id=plan_id),
        send("boat", mutation_plan_id=plan_id),
        send("boat", mutation_plan_id=plan_id),
    )
    assert code_of(other) == "capability_mutation_plan_mismatch"
    assert result_of(mine)["output"]["input"] == {"word": "boat"}
    assert result_of(used)["replayed"] is True, "done once"
    [foreign] = desk.asks(bob, send("boat", mutation_plan_id=plan_id))
    assert code_of(foreign) == "capability_mutation_plan_mismatch"
    assert decided(desk, ann) == ["confirmed"]


def test_a_no_holds_and_cannot_be_taken_back(desk: Desk) -> None:
    ann = somebody()
    desk.link(ann, BOX)
    [first] = desk.asks(ann, send("boat"))
    plan_id = waiting(desk, ann, first)
    where = f"/services/approvals/{plan_id}"
    desk.daemon.post(where, {"decision": "deny"})
    refused = desk.daemon.error("POST", where, {"decision": "confirm"})
    assert (refused["status"], refused["code"]) == (404, "approval_unknown")
    [again] = desk.asks(ann, send("boat", mutation_plan_id=plan_id))
    assert code_of(again) == "capability_mutation_not_confirmed"
    assert decided(desk, ann) == ["denied"]


def test_what_is_not_there_cannot_be_decided_revoked_or_refreshed(desk: Desk) -> None:
    revoked = {"user_id": "nobody", "capability": BOX, "account_ref": "acct_x"}
    for path, body, code in (
        ("/services/accounts/revoke", revoked, "account_unknown"),
        ("/services/providers/nobody/refresh", None, "service_provider_unknown"),
    ):
        refused = desk.daemon.error("POST", path, body)
        assert (refused["status"], refused["code"]) == (404, code)


def test_an_account_taken_back_by_the_operator_or_its_owner_is_on_record(desk: Desk) -> None:
    ann = somebody()
    for hint in ("one", "two"):
        desk.link(ann, BOX, hint)
    body = {"user_id": ann.user, "capability": BOX, "account_ref": "acct_one"}
    desk.daemon.post("/services/accounts/revoke", body)
    assert [one["account_ref"] for one in desk.accounts(ann.user)] == ["acct_two"]
    desk.ask(ann, "auth.revoke", capability=BOX, account_ref="acct_two")
    assert desk.accounts(ann.user) == []
    [row] = exactly(1, lambda: desk.audit(ann, "capability_account_revoked"))
    assert row["account_ref"] == "acct_one"
    [row] = exactly(1, lambda: desk.audit(ann, "capability_auth_revoke"))
    assert (row["account_ref"], row["outcome"]) == ("acct_two", "ok")


def test_a_flow_that_was_asked_about_is_on_record(desk: Desk) -> None:
    ann = somebody()
    flow = desk.ask(ann, "auth.begin", capability=BOX)["flow_id"]
    desk.asks(ann, step("auth.poll", flow_id=flow))
    [row] = exactly(1, lambda: desk.audit(ann, "capability_auth_poll"))
    assert flow.startswith(row["flow_id"])


def test_after_a_rotation_of_the_key_accounts_work_as_before(desk: Desk) -> None:
    ann = somebody()
    desk.link(ann, BOX)
    key = next(desk.daemon.home.rglob("vault.key"))
    before = key.read_bytes()
    desk.daemon.post("/services/vault/rotate")
    assert key.read_bytes() != before
    assert desk.invoke(ann, BOX, "read", input={"word": "x"})["account"] == "acct_default"
    rows = desk.daemon.audit("capability_vault_rotated")
    assert rows[-1]["data"]["records"] >= 0


def test_a_method_that_is_not_there_is_refused_in_a_cage(desk: Desk) -> None:
    [answer] = desk.asks(somebody(), {"method": "capability.nonsense", "params": {}})
    assert error_of(answer)["code"] == -32601


def test_strict_output_refuses_what_looks_like_a_secret_and_skills_may_be_required(
    own_desk: Callable[..., Desk], tmp_path: Path, desk: Desk
) -> None:
    ann = somebody()
    assert SECRET not in str(desk.ask(ann, "invoke", capability=BOX, operation="leak"))
    strict = own_desk(
        Bridge(tmp_path, "mail", plan()),
        more='[capabilities]\nstrict_output = true\nvault_key = "file"\n',
    ).open()
    ready(strict)
    assert strict.code(ann, BOX, "leak") == "capability_invalid_output"
    strict.stop()
    config = strict.daemon.home / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("strict_output", "require_skill"), encoding="utf-8")
    strict.open()
    ready(strict)
    assert strict.code(ann, BOX, "leak") == "capability_access_denied"

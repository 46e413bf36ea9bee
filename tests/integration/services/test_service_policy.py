"""The gates: skill, capability, operation; in this order, and closed when in doubt."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.config.providers import SkillSection
from kaged.config.skill_file import SkillMetadata, parse_skill_metadata
from kaged.kernel.service_ids import parse_service_ids
from kaged.services.contract import CapabilityDefinition, InvokeCall
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityNotFound,
    CapabilityRateLimited,
)
from kaged.services.limits import DEFAULT_RATES
from raising import raises_code
from requirements import requirement

EMAIL = parse_service_ids(["gog.email"])


async def _code(call: Any) -> str:
    try:
        await call
    except CapabilityError as error:
        return error.code
    return "ok"


@requirement("SC-POL-01")
def test_a_definition_has_access_metadata_by_default() -> None:
    found = CapabilityDefinition("gog.email", "Mail.")
    assert found.sensitive is False
    assert found.allowed_chat_types == []


@requirement("SC-POL-02", "SC-POL-14", "SC-ERR-02")
async def test_a_sensitive_capability_is_for_private_chats(empty_lab: ServiceLab) -> None:
    provider = FakeProvider("gog", definition(sensitive=True))
    await empty_lab.register(provider)
    outcomes = {
        chat: await _code(empty_lab.invoke("ping", token=empty_lab.token("alice", chat)))
        for chat in ("private", "group", "supergroup", "channel", None)
    }
    denied = "capability_access_denied"
    assert outcomes == {
        "private": "ok",
        "group": denied,
        "supergroup": denied,
        "channel": denied,
        None: denied,
    }
    assert len(provider.calls) == 1


@requirement("SC-POL-03", "SC-POL-04", "SC-AMB-17")
async def test_an_explicit_list_wins_and_an_empty_one_means_everywhere(
    empty_lab: ServiceLab,
) -> None:
    await empty_lab.register(
        FakeProvider(
            "gog",
            definition("gog.open"),
            definition("gog.wide", sensitive=True, allowed_chat_types=["private", " Group "]),
            definition("gog.narrow", allowed_chat_types=["PRIVATE"]),
        )
    )
    chats = ("private", "group", "GROUP", "channel", None)
    outcomes = {
        (name, chat): await _code(
            empty_lab.invoke("ping", capability=f"gog.{name}", token=empty_lab.token("a", chat))
        )
        for name in ("open", "wide", "narrow")
        for chat in chats
    }
    allowed = {key for key, outcome in outcomes.items() if outcome == "ok"}
    assert allowed == {
        *(("open", chat) for chat in chats),
        ("wide", "private"),
        ("wide", "group"),
        ("wide", "GROUP"),
        ("narrow", "private"),
    }


@requirement("SC-POL-05", "SC-POL-13")
async def test_the_chat_policy_guards_linking_too(empty_lab: ServiceLab) -> None:
    provider = FakeProvider("gog", definition(sensitive=True))
    await empty_lab.register(provider)
    flow = await empty_lab.call("auth.begin", capability="gog.email", account_hint="one")
    group = empty_lab.token("alice", "group")
    provider.calls.clear()
    rest: dict[str, dict[str, Any]] = {
        "invoke": {"capability": "gog.email", "operation": "ping"},
        "auth.begin": {"capability": "gog.email", "account_hint": "two"},
        "auth.complete": {"flow_id": flow["flow_id"], "code": "c"},
        "auth.complete_callback": {"code": "c"},
        "auth.poll": {"flow_id": flow["flow_id"]},
        "auth.revoke": {"capability": "gog.email", "account_ref": "acct_one"},
    }
    for method, params in rest.items():
        with raises_code("capability_access_denied", CapabilityError):
            await empty_lab.call(method, token=group, **params)
    assert provider.calls == []
    assert len(await empty_lab.rows.all_flows()) == 1
    assert (await empty_lab.call("auth.list", token=group))["flows"] == []


@requirement("SC-POL-06")
async def test_only_a_call_that_passes_all_three_gates_reaches_the_provider(
    lab: ServiceLab,
) -> None:
    lab.skills.metadata["mail"] = SkillMetadata("mail", capabilities=EMAIL)
    narrow = FakeProvider("acme", definition("acme.email", allowed_chat_types=["private"]))
    await lab.register(narrow)
    await lab.link("alice", capability="acme.email")
    narrow.calls.clear()
    for skill, chat, operation in product((True, False), repeat=3):
        declared = ("acme.email",) if skill else ("gog.calendar",)
        lab.skills.metadata["mail"] = SkillMetadata(
            "mail", capabilities=parse_service_ids(list(declared))
        )
        token = lab.token("alice", "private" if chat else "group", skill="mail", caps=declared)
        given = {"folder": "inbox"} if operation else {}
        code = await _code(
            lab.invoke("list_messages", capability="acme.email", given=given, token=token)
        )
        assert (code == "ok") == (skill and chat and operation)
        assert len(narrow.of(InvokeCall)) == (1 if skill and chat and operation else 0)
        narrow.calls.clear()


@requirement("SC-POL-07")
@pytest.mark.parametrize("setting", ["sensitive", "chat_types", "allow_chat_ids", "capabilities"])
async def test_each_setting_of_a_skill_can_exclude_a_call(lab: ServiceLab, setting: str) -> None:
    fine: dict[str, Any] = {"capabilities": EMAIL}
    excluding: dict[str, Any] = {
        "sensitive": SkillMetadata("mail", sensitive=True, **fine),
        "chat_types": SkillMetadata("mail", chat_types=("private",), **fine),
        "allow_chat_ids": SkillMetadata("mail", **fine),
        "capabilities": SkillMetadata("mail", capabilities=parse_service_ids(["gog.calendar"])),
    }
    lab.skills.metadata["mail"] = excluding[setting]
    if setting == "allow_chat_ids":
        lab.skills.settings = {"mail": SkillSection(allow_chat_ids=("c1",))}
    token = lab.token("alice", "group", skill="mail", caps=("gog.email",), chat_id="c2")
    assert await _code(lab.invoke("ping", token=token)) == "capability_access_denied"
    assert lab.provider.calls == []
    adjusted: dict[str, Any] = {
        "sensitive": SkillMetadata("mail", sensitive=False, **fine),
        "chat_types": SkillMetadata("mail", chat_types=("private", "group"), **fine),
        "allow_chat_ids": SkillMetadata("mail", **fine),
        "capabilities": SkillMetadata("mail", **fine),
    }
    lab.skills.metadata["mail"] = adjusted[setting]
    if setting == "allow_chat_ids":
        lab.skills.settings = {"mail": SkillSection(allow_chat_ids=("c1", "c2"))}
    assert await _code(lab.invoke("ping", token=token)) == "ok"


async def test_chat_ids_come_from_the_skill_or_the_defaults(lab: ServiceLab) -> None:
    lab.skills.metadata["mail"] = SkillMetadata("mail", capabilities=EMAIL)
    token = lab.token("alice", "private", skill="mail", chat_id="c2")
    lab.skills.settings = {"defaults": SkillSection(allow_chat_ids=("c1",))}
    assert await _code(lab.invoke("ping", token=token)) == "capability_access_denied"
    nowhere = lab.token("alice", "private", skill="mail")
    assert await _code(lab.invoke("ping", token=nowhere)) == "capability_access_denied"
    lab.skills.settings = {
        "defaults": SkillSection(allow_chat_ids=("c1",)),
        "mail": SkillSection(allow_chat_ids=()),
    }
    assert await _code(lab.invoke("ping", token=token)) == "ok"
    lab.skills.settings = {"mail": SkillSection(enabled=False)}
    assert await _code(lab.invoke("ping", token=token)) == "capability_access_denied"


@requirement("SC-POL-08", "SC-AMB-18")
async def test_a_skill_uses_what_it_declared_and_nothing_else(lab: ServiceLab) -> None:
    await lab.register(FakeProvider("acme", definition("acme.calendar")))
    await lab.link("alice", capability="acme.calendar")
    token = lab.token("alice", skill="mail", caps=("gog.email",))
    assert await _code(lab.invoke("ping", token=token)) == "ok"
    called = lab.invoke("whoami", capability="acme.calendar", token=token)
    assert await _code(called) == "capability_access_denied"
    # Without a skill there is no skill policy, and the caller can neither add nor drop the claim.
    assert await _code(lab.invoke("whoami", capability="acme.calendar")) == "ok"
    forged = await _code(
        lab.invoke("whoami", capability="acme.calendar", token=token, skill=None, caps=None)
    )
    assert forged == "capability_access_denied"


async def test_the_operator_may_require_a_skill(tmp_path: Path) -> None:
    strict = await ServiceLab(tmp_path).open(require_skill=True)
    await strict.register()
    assert await _code(strict.invoke("ping")) == "capability_access_denied"
    token = strict.token("alice", skill="mail", caps=("gog.email",))
    assert await _code(strict.invoke("ping", token=token)) == "ok"
    await strict.close()


@requirement("SC-POL-09")
async def test_the_capability_gate_does_not_care_what_the_skill_allows(
    empty_lab: ServiceLab,
) -> None:
    await empty_lab.register(FakeProvider("gog", definition(allowed_chat_types=["private"])))
    empty_lab.skills.metadata["mail"] = SkillMetadata(
        "mail", chat_types=("group", "private"), capabilities=EMAIL
    )
    group = empty_lab.token("alice", "group", skill="mail", caps=("gog.email",))
    assert await _code(empty_lab.invoke("ping", token=group)) == "capability_access_denied"
    private = empty_lab.token("alice", "private", skill="mail", caps=("gog.email",))
    assert await _code(empty_lab.invoke("ping", token=private)) == "ok"


@requirement("SC-POL-10", "SC-PROV-09", "SC-ERR-05")
async def test_the_operation_gate_wants_auth_input_and_health(lab: ServiceLab) -> None:
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("list_messages", given={"folder": "inbox"})
    await lab.link()
    lab.provider.calls.clear()
    inputs: list[dict[str, Any]] = [{}, {"folder": 5}, {"folder": None}]
    for bad in inputs:
        with pytest.raises(CapabilityInvalidInput):
            await lab.invoke("list_messages", given=bad)
    for no_object in ([], "x", 5, True):
        given: dict[str, Any] = {"capability": "gog.email", "operation": "list_messages"}
        given["input"] = no_object
        with pytest.raises(CapabilityInvalidInput):
            await lab.call("invoke", token=lab.token(), **given)
    assert lab.provider.calls == []

    async def down(call: InvokeCall) -> Any:
        raise ConnectionError("no route to secret-host-7781")

    lab.provider.on_invoke = down
    with pytest.raises(CapabilityBackendUnavailable) as failed:
        await lab.invoke("list_messages", given={"folder": "inbox"})
    assert "secret-host-7781" not in str(failed.value)


@requirement("SC-POL-11")
async def test_the_same_request_is_refused_with_the_same_code_every_time(
    empty_lab: ServiceLab,
) -> None:
    providers = [
        FakeProvider(name, definition(f"{name}.email", allowed_chat_types=["private"]))
        for name in ("gog", "acme", "zeta", "beta")
    ]
    random.Random(7).shuffle(providers)
    for provider in providers:
        await empty_lab.register(provider)
    token = empty_lab.token("alice", "group", skill="mail", caps=("gog.calendar",))
    codes = set()
    for _ in range(100):
        codes.add(await _code(empty_lab.invoke("list_messages", token=token)))
    assert codes == {"capability_access_denied"}
    records = await empty_lab.seen("capability_invoke")
    assert {record["gate"] for record in records} == {"skill"}


@requirement("SC-POL-12")
async def test_a_gate_that_breaks_denies(lab: ServiceLab) -> None:
    class Unreadable(dict[str, SkillMetadata]):
        def get(self, *_: Any) -> Any:
            raise OSError("the skill file is unreadable")

    lab.skills.metadata = Unreadable()
    token = lab.token("alice", skill="mail", caps=("gog.email",))
    with raises_code("capability_access_denied", CapabilityError) as denied:
        await lab.invoke("ping", token=token)
    assert "unreadable" not in str(denied.value)
    assert lab.provider.calls == []
    [record] = await lab.seen("capability_invoke")
    assert record["gate"] == "skill: broke"
    assert record["error.code"] == "capability_access_denied"
    listed = await lab.call("list", token=token, include_unavailable=True)
    assert listed["capabilities"][0]["available"] is False


async def test_a_skill_nobody_knows_is_denied(lab: ServiceLab) -> None:
    assert await _code(lab.invoke("ping", token=lab.token("a", skill="ghost"))) == (
        "capability_access_denied"
    )


@requirement("SC-POL-16")
async def test_limits_hold_only_where_they_are_configured(lab: ServiceLab) -> None:
    for _ in range(40):
        await lab.invoke("ping")
    lab.limits.set_rules("gog", DEFAULT_RATES)
    for _ in range(20):
        await lab.invoke("ping")
    lab.provider.calls.clear()
    with pytest.raises(CapabilityRateLimited) as limited:
        await lab.invoke("ping")
    assert limited.value.data["retry_after_seconds"] == 1
    assert lab.provider.calls == []
    assert (await lab.seen("capability_invoke"))[-1]["error.code"] == "capability_rate_limited"
    assert (await lab.seen("capability_invoke"))[-1]["gate"] == "limits"
    await lab.invoke("ping", "bob")  # another user has a measure of their own
    lab.clock.advance(1.1)
    await lab.invoke("ping")


async def test_the_operator_allows_and_denies_operations(empty_lab: ServiceLab) -> None:
    await empty_lab.register(FakeProvider("gog"), deny=("email.send",))
    await empty_lab.register(FakeProvider("acme"), allow=("email.p*",))
    assert await _code(empty_lab.invoke("send")) == "capability_access_denied"
    assert await _code(empty_lab.invoke("ping")) == "ok"
    assert await _code(empty_lab.invoke("ping", capability="acme.email")) == "ok"
    assert await _code(empty_lab.invoke("whoami", capability="acme.email")) == (
        "capability_access_denied"
    )


@requirement("SC-ERR-08")
async def test_the_earliest_failing_step_names_the_code(lab: ServiceLab) -> None:
    """Each request breaks one condition and every later one."""
    narrow = FakeProvider("acme", definition("acme.email", allowed_chat_types=["private"]))

    async def leak(call: InvokeCall) -> Any:
        return {"access_token": "x"}

    narrow.on_invoke = leak
    await lab.register(narrow)
    private, group = lab.token("alice"), lab.token("alice", "group")
    skill = lab.token("alice", "group", skill="mail", caps=("gog.calendar",))

    async def code(token: str, capability: str, operation: str, given: Any) -> str:
        return await _code(
            lab.call("invoke", token=token, capability=capability, operation=operation, input=given)
        )

    denied, wrong = "capability_access_denied", "capability_invalid_input"
    assert await code(skill, "email", "nope", 5) == wrong  # the form of the id
    assert await code(skill, "acme.nope", "nope", 5) == denied  # the skill gate
    assert await code(group, "acme.nope", "nope", 5) == "capability_not_found"  # existence
    assert await code(group, "acme.email", "nope", 5) == denied  # the capability gate
    assert await code(private, "acme.email", "nope", 5) == wrong  # the operation
    assert await code(private, "acme.email", "list_messages", 5) == "capability_auth_required"
    await lab.link("alice", capability="acme.email")
    lab.limits.set_rules("acme", DEFAULT_RATES)
    for _ in range(20):
        await code(private, "acme.email", "ping", {})
    assert await code(private, "acme.email", "list_messages", 5) == wrong  # the input
    inbox = {"folder": "inbox"}
    assert await code(private, "acme.email", "list_messages", inbox) == "capability_rate_limited"
    lab.clock.advance(120)
    private = lab.token("alice")

    async def down(call: InvokeCall) -> Any:
        raise OSError("down")

    narrow.on_invoke = down
    assert await code(private, "acme.email", "list_messages", inbox) == (
        "capability_backend_unavailable"
    )
    narrow.on_invoke = leak
    assert await code(private, "acme.email", "list_messages", inbox) == (
        "capability_invalid_output"
    )


@requirement("SC-AUD-03")
async def test_a_denial_is_on_record_with_its_gate_and_code(lab: ServiceLab) -> None:
    await lab.register(FakeProvider("acme", definition("acme.email", sensitive=True)))
    skill = lab.token("alice", skill="mail", caps=("gog.calendar",))
    await _code(lab.invoke("ping", token=skill))
    await _code(lab.invoke("ping", capability="acme.email", token=lab.token("alice", "group")))
    await _code(lab.invoke("whoami"))
    await lab.link()
    await _code(lab.invoke("list_messages"))
    found = [
        (record["gate"], record["error.code"], record["outcome"])
        for record in await lab.seen("capability_invoke")
    ]
    assert found == [
        ("skill", "capability_access_denied", "denied"),
        ("capability", "capability_access_denied", "denied"),
        ("account", "capability_auth_required", "denied"),
        ("input", "capability_invalid_input", "denied"),
    ]


@requirement("SC-NS-02", "SC-AMB-03", "SC-ERR-01", "SC-AMB-25")
async def test_ids_are_full_ids(lab: ServiceLab) -> None:
    for text in ("email", "", "a.b.c", "Gog.email", "gog.email\n", ".email", "gog."):
        for method, rest in (("invoke", {"operation": "ping"}), ("auth.begin", {})):
            with pytest.raises(CapabilityInvalidInput):
                await lab.call(method, capability=text, **rest)
    for method, rest in (("invoke", {"operation": "ping"}), ("auth.begin", {})):
        with pytest.raises(CapabilityNotFound):
            await lab.call(method, capability="gog.nope", **rest)
    assert (await lab.invoke("ping", capability="  gog.email "))["ok"]
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("no_such_op")
    assert len(lab.provider.calls) == 1
    assert await lab.rows.all_flows() == ()


def test_what_a_skill_says_about_its_provider_is_ignored_and_named() -> None:
    found = parse_skill_metadata(
        "mail",
        {
            "capabilities": ["gog.email"],
            "command": ["evil"],
            "image": "evil",
            "runtime": "evil",
            "capability_provider": {"command": ["evil"]},
        },
    )
    assert found.capabilities == EMAIL
    assert set(found.ignored) == {"command", "image", "runtime", "capability_provider"}
    assert "evil" not in json.dumps(found.ignored)

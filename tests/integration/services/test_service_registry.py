"""Providers: what they may offer, and what happens when they cannot say."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.service_lab import FakeProvider, ServiceLab, definition
from kaged.base import ManualClock
from kaged.services.contract import (
    CapabilityCallContext,
    CapabilityDefinition,
    CapabilityOperation,
    CapabilityProvider,
)
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityNotFound,
)
from kaged.services.registry import CapabilityRegistry
from raising import raises_code
from requirements import requirement


@requirement("SC-PROV-02")
def test_a_provider_has_five_members() -> None:
    members = ("namespace", "definitions", "auth_begin", "auth_complete", "invoke")

    def minimal(without: str | None) -> object:
        body: dict[str, Any] = {name: (lambda self: None) for name in members if name != without}
        return type("Minimal", (), body)()

    assert isinstance(minimal(None), CapabilityProvider)
    for name in members:
        assert not isinstance(minimal(name), CapabilityProvider)


@requirement("SC-PROV-03")
def test_a_context_is_a_user_and_seven_optional_texts() -> None:
    names = {one.name for one in fields(CapabilityCallContext)}
    optional = {
        "chat_id",
        "chat_type",
        "provider",
        "thread_id",
        "session_key",
        "source_username",
        "source_display_name",
    }
    assert names == {"user_id", *optional}
    context = CapabilityCallContext("u")
    assert all(getattr(context, name) is None for name in optional)
    with pytest.raises(FrozenInstanceError):
        context.user_id = "other"  # type: ignore[misc]  # that is the point


@requirement("SC-PROV-04", "SC-PROV-05")
def test_definitions_and_operations_have_their_defaults() -> None:
    one, two = CapabilityDefinition("a.b", "x"), CapabilityDefinition("a.b", "x")
    assert (one.sensitive, one.allowed_chat_types, one.operations) == (False, [], {})
    assert one.allowed_chat_types is not two.allowed_chat_types
    assert one.operations is not two.operations
    operation = CapabilityOperation("o", "x")
    assert (operation.requires_auth, operation.mutating) == (True, False)
    assert (operation.input_schema, operation.output_schema) == ({}, {})


@requirement("SC-NS-06", "SC-PROV-06")
@pytest.mark.parametrize("bad", ["acme.email", "gogx.email", "Gog.email", "email"])
async def test_a_provider_offers_only_under_its_own_name(empty_lab: ServiceLab, bad: str) -> None:
    with pytest.raises(CapabilityInvalidInput) as refused:
        await empty_lab.register(FakeProvider("gog", definition("gog.fine"), definition(bad)))
    assert "gog" in refused.value.message
    assert bad in refused.value.message
    assert empty_lab.registry.list() == ()
    assert empty_lab.registry.provider("gog") is None


@pytest.mark.parametrize(
    "broken",
    [
        definition("gog.x", operations={}),
        CapabilityDefinition("gog.x", " ", operations={"a": CapabilityOperation("a", "b")}),
        definition("gog.x", operations={"a": CapabilityOperation("b", "c")}),
        definition("gog.x", operations={" ": CapabilityOperation(" ", "c")}),
        definition("gog.x", operations={"a": CapabilityOperation("a", "")}),
        definition("gog.fine"),
    ],
)
async def test_registration_is_all_or_nothing(
    empty_lab: ServiceLab, broken: CapabilityDefinition
) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await empty_lab.register(FakeProvider("gog", definition("gog.fine"), broken))
    assert empty_lab.registry.list() == ()
    with pytest.raises(CapabilityNotFound):
        await empty_lab.invoke("ping", capability="gog.fine")


@requirement("SC-AMB-04")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    st.sampled_from(["\n", ".", "A", " ", "/", ":", "\u00e9", "\x00", "-."]),
)
async def test_ids_follow_the_grammar(namespace: str, name: str, intruder: str) -> None:
    registry = CapabilityRegistry(ManualClock())
    good = f"{namespace}.{name}"
    plain = {"a": CapabilityOperation("a", "b")}
    await registry.register(FakeProvider(namespace, definition(good, operations=plain)))
    assert registry.get(good) is not None
    for bad in (f"{good}{intruder}x", f"{namespace}{intruder}{name}.x.y", f"{good}\n"):
        other = CapabilityRegistry(ManualClock())
        with pytest.raises(CapabilityInvalidInput):
            await other.register(FakeProvider(namespace, definition(bad, operations=plain)))
        assert other.list() == ()


@requirement("SC-NS-03")
async def test_a_provider_that_offers_an_id_twice_offers_nothing(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    twice = [definition("gog.email"), definition("gog.calendar"), definition("gog.email")]
    with raises_code("capability_invalid_input", CapabilityInvalidInput) as refused:
        await lab.registry.register(FakeProvider("gog", *twice))
    assert "gog.email is already registered" in refused.value.message
    assert lab.registry.list() == ()
    assert lab.registry.provider("gog") is None


@requirement("SC-AMB-26")
async def test_a_provider_that_is_down_is_tried_again_with_growing_pauses(
    empty_lab: ServiceLab,
) -> None:
    lab = empty_lab
    flaky, steady = FakeProvider("gog"), FakeProvider("acme")

    def down() -> None:
        raise ConnectionError("not yet")

    flaky.on_definitions = down
    await lab.registry.register(flaky, keep_if_down=True)
    await lab.register(steady)
    assert flaky.asked == 1
    with pytest.raises(CapabilityBackendUnavailable):  # the first use tries at once
        await lab.invoke("ping")
    assert flaky.asked == 2
    for capability in ("gog.email", "gog.anything"):
        with pytest.raises(CapabilityBackendUnavailable):
            await lab.invoke("ping", capability=capability)
    assert flaky.asked == 2
    assert (await lab.invoke("ping", capability="acme.email"))["ok"]
    pauses = []
    for _ in range(12):
        due = await lab.registry.revive_due()
        assert due is not None
        pause = due - lab.clock.monotonic_s()
        pauses.append(round(pause))
        lab.clock.advance(pause)
    assert pauses[0] <= 2
    assert pauses == sorted(pauses)
    assert pauses[-1] == 300
    flaky.on_definitions = None
    assert await lab.registry.revive_due() is None
    assert (await lab.invoke("ping"))["ok"]
    late = FakeProvider("late", definition("late.email"))
    late.on_definitions = down
    await lab.registry.register(late, keep_if_down=True)
    late.on_definitions = None
    assert (await lab.invoke("ping", capability="late.email"))["ok"], "its first use brings it up"
    assert late.asked == 2
    reasons = await lab.seen("capability_provider_unavailable")
    assert reasons[0]["provider"] == "gog"
    assert "not yet" not in str(reasons)


@requirement("SC-AMB-35")
async def test_definitions_change_only_on_refresh_and_a_bad_one_changes_nothing(
    lab: ServiceLab,
) -> None:
    provider = lab.provider
    provider.offered = [definition("gog.email"), definition("gog.calendar")]
    with pytest.raises(CapabilityNotFound):
        await lab.invoke("ping", capability="gog.calendar")
    await lab.registry.refresh("gog")
    assert (await lab.invoke("ping", capability="gog.calendar"))["ok"]
    await lab.register(FakeProvider("acme"))
    for bad in (definition("acme.email"), definition("gog.calendar"), definition("other.x")):
        provider.offered = [definition("gog.calendar"), bad]
        with pytest.raises(CapabilityInvalidInput):
            await lab.registry.refresh("gog")
    assert (await lab.invoke("ping", capability="gog.email"))["ok"]
    assert (await lab.invoke("ping", capability="gog.calendar"))["ok"]


@requirement("SC-PROV-01")
async def test_no_method_registers_a_provider(lab: ServiceLab) -> None:
    assert not any("regist" in name or "provider" in name for name in lab.rpc.methods)
    for method in ("capability.register", "capability.providers.add", "provider.register"):
        with raises_code("capability_method_unknown"):
            await lab.rpc.call(method, {"context_token": lab.token()})


async def test_a_provider_that_fails_is_unavailable(lab: ServiceLab) -> None:
    async def refuse(call: Any) -> Any:
        raise ConnectionRefusedError("upstream")

    lab.provider.on_invoke = refuse
    codes = set()
    for _ in range(2):
        with pytest.raises(CapabilityError) as failed:
            await lab.invoke("ping")
        codes.add(failed.value.code)
    assert codes == {"capability_backend_unavailable"}

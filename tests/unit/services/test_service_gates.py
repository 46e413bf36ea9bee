"""The gates and skills as plain values, without a host around them."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.capability_codes import CAPABILITY_CODES
from fakes.service_lab import FakeProvider, definition
from kaged.base import ManualClock
from kaged.config.skill_file import parse_skill_metadata
from kaged.kernel.service_ids import ServiceIdInvalid, parse_service_id
from kaged.services.caller import ContextTokens, ServiceCaller, context_of
from kaged.services.errors import CapabilityError, provider_error
from kaged.services.gates import decide_chat, decide_skill
from kaged.services.limits import DEFAULT_RATES, RateLimits, RateRules
from kaged.services.registry import CapabilityRegistry, RegisteredCapability
from kaged.services.skills import SkillRegistry
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims
from raising import raises_code
from requirements import requirement

EMAIL = parse_service_id("gog.email")


def _caller(chat_type: str | None, **claims: Any) -> ServiceCaller:
    tokens = ContextTokens(TokenKey(b"k" * 32), ManualClock())
    token = tokens.mint("alice", routing=RoutingClaims(chat_type=chat_type), **claims)
    verified = tokens.verify(token)
    return ServiceCaller(verified, context_of(verified))


async def _capability(**fields: Any) -> RegisteredCapability:
    registry = CapabilityRegistry(ManualClock())
    await registry.register(FakeProvider("gog", definition(**fields)))
    found = registry.get("gog.email")
    assert found is not None
    return found


@requirement("SC-POL-02")
async def test_a_sensitive_capability_is_private_by_default() -> None:
    capability = await _capability(sensitive=True)
    allowed = {
        chat: decide_chat(_caller(chat), capability).allowed
        for chat in ("private", "Private", "group", "supergroup", None)
    }
    assert allowed == {
        "private": True,
        "Private": True,
        "group": False,
        "supergroup": False,
        None: False,
    }


def test_a_skill_that_is_known_without_a_list_declared_nothing() -> None:
    skills = SkillRegistry(metadata={"mail": parse_skill_metadata("mail", {})})
    caller = _caller("private", skill="mail")
    assert not decide_skill(caller, EMAIL, skills, require_skill=False).allowed
    named = _caller("private", skill="mail", caps=("gog.email",))
    assert decide_skill(named, EMAIL, skills, require_skill=False).allowed
    odd = _caller("private", skill="mail", caps=("not an id",))
    assert not decide_skill(odd, EMAIL, skills, require_skill=False).allowed


@pytest.mark.parametrize(
    "found",
    [
        {"access": {"chat_types": ["private"], "users": ["x"]}},
        {"access": "private"},
        {"access": {"chat_types": [7]}},
        {"sensitive": "perhaps"},
    ],
)
def test_metadata_that_is_not_understood_is_refused(found: dict[str, Any]) -> None:
    with raises_code("skill_metadata_invalid"):
        parse_skill_metadata("mail", found)


def test_metadata_is_read_leniently_where_that_is_safe() -> None:
    found = parse_skill_metadata(
        "mail", {"sensitive": "yes", "access": {"chat_types": " Group "}, "env": ["AUTHOR", "KEYS"]}
    )
    assert found.sensitive is True
    assert found.chat_types == ("group",)
    assert found.secret_names == ()
    assert parse_skill_metadata("mail", {"env": {"MY_TOKEN": "x"}}).secret_names == ("MY_TOKEN",)
    assert parse_skill_metadata("mail", {"capabilities": ["email"]}).capabilities is None
    assert parse_skill_metadata("mail", {"capabilities": []}).capabilities == frozenset()
    with pytest.raises(ServiceIdInvalid):
        parse_skill_metadata("mail", {"capabilities": ["gog.email", "email"]})


def test_buckets_fill_again_and_quotas_last_a_day() -> None:
    clock = ManualClock()
    limits = RateLimits(clock, {"gog": RateRules(per_day=2), "acme": DEFAULT_RATES})
    for _ in range(2):
        limits.require_invoke("alice", "gog", "gog.email", mutating=False)
    with pytest.raises(CapabilityError):
        limits.require_invoke("alice", "gog", "gog.email", mutating=False)
    clock.advance(86_400)
    limits.require_invoke("alice", "gog", "gog.email", mutating=False)
    for _ in range(5):
        limits.require_invoke("alice", "acme", "acme.email", mutating=True)
    with pytest.raises(CapabilityError):
        limits.require_invoke("alice", "acme", "acme.email", mutating=True)
    limits.require_invoke("alice", "acme", "acme.email", mutating=False)


def test_every_code_makes_its_error_and_others_travel_as_they_are() -> None:
    for code in CAPABILITY_CODES:
        assert code.startswith("capability_")
        assert provider_error(code, "text").code == code
    assert provider_error("capability_own_thing", "text").code == "capability_own_thing"

"""The gates of a capability call, each a `Decision`: skill, capability, operation.

Evaluated in this order, and the first denial wins. A gate that breaks denies.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from kaged.kernel.decision import Decision, fail_closed
from kaged.kernel.service_ids import ServiceId, ServiceIdInvalid, decide_service, parse_service_ids
from kaged.kernel.skill_policy import SKILL_DENIED, SKILL_RULE, decide_skill_use
from kaged.services.caller import ServiceCaller
from kaged.services.registry import RegisteredCapability, RegisteredOperation
from kaged.services.skills import SkillRegistry

CHAT_RULE: Final = "service.chat_type"
OPERATION_RULE: Final = "service.operation"
PERSON_RULE: Final = "service.person"

_SKILL_PASSES: Final = Decision.allow(SKILL_RULE)
_CHAT_PASSES: Final = Decision.allow(CHAT_RULE)
_PERSON_PASSES: Final = Decision.allow(PERSON_RULE)
_OPERATION_PASSES: Final = Decision.allow(OPERATION_RULE)


@fail_closed(SKILL_RULE)
def decide_skill(
    caller: ServiceCaller, wanted: ServiceId, skills: SkillRegistry, *, require_skill: bool
) -> Decision:
    """Decide by the skill that runs: enabled, its chats, and what it declared.

    Without a skill in the token there is no skill policy, unless the operator requires one.
    """
    skill = caller.token.skill
    if skill is None:
        if require_skill and not caller.in_person:
            return _deny(SKILL_RULE, "only skills may use capabilities on this host")
        return _SKILL_PASSES
    policy = skills.policy_of(skill)
    caps = caller.token.caps
    if policy is None and caps is None:
        return _deny(SKILL_RULE, f"the skill {skill} is not known to this host")
    if policy is not None:
        here = decide_skill_use(policy, caller.chat_type, caller.chat)
        if not here.allowed:
            return here
        if policy.capabilities is not None:
            declared = decide_service(policy.capabilities, wanted)
            if not declared.allowed:
                return declared
    if caps is None:
        known = policy is not None and policy.capabilities is not None
        return _SKILL_PASSES if known else _deny(SKILL_RULE, f"{skill} declared no capabilities")
    try:
        return decide_service(parse_service_ids(list(caps)), wanted)
    except ServiceIdInvalid:
        return _deny(SKILL_RULE, f"the skill {skill} declared something that is no capability")


@fail_closed(CHAT_RULE)
def decide_chat(caller: ServiceCaller, capability: RegisteredCapability) -> Decision:
    """Decide by the kind of chat; where only some are allowed, an unknown one is not."""
    if usable_in(caller.chat_type, capability):
        return _CHAT_PASSES
    kinds = ", ".join(sorted(capability.chat_types or ()))
    return _deny(CHAT_RULE, f"{capability.text} may be used in these chats only: {kinds}")


def usable_in(chat_type: str | None, capability: RegisteredCapability) -> bool:
    """Return whether a capability may be used in a kind of chat; None is an unknown one."""
    return capability.chat_types is None or chat_type in capability.chat_types


@fail_closed(OPERATION_RULE)
def decide_operation(capability: RegisteredCapability, operation: RegisteredOperation) -> Decision:
    """Decide by what the operator allows and denies of a provider."""
    rules = capability.provider.rules
    if not rules.allow and not rules.deny:
        return _OPERATION_PASSES
    name = f"{capability.id.name}.{operation.name}"
    if any(fnmatchcase(name, pattern) for pattern in rules.deny):
        return _deny(OPERATION_RULE, f"the operator denies {name}")
    if rules.allow and not any(fnmatchcase(name, pattern) for pattern in rules.allow):
        return _deny(OPERATION_RULE, f"the operator does not allow {name}")
    return _OPERATION_PASSES


@fail_closed(PERSON_RULE)
def decide_person(
    allowed: frozenset[str] | None, capability: RegisteredCapability, operation: str | None = None
) -> Decision:
    """Decide by the operations that the operator lets a person call.

    Without an operation the capability passes as soon as one of its operations would.
    """
    if allowed is None:
        return _PERSON_PASSES
    wanted = capability.operations if operation is None else (operation,)
    names = [f"{capability.text}.{one}" for one in wanted]
    if any(fnmatchcase(name, pattern) for name in names for pattern in allowed):
        return _PERSON_PASSES
    what = capability.text if operation is None else names[0]
    return _deny(PERSON_RULE, f"the operator does not allow this person {what}")


def _deny(rule: str, detail: str) -> Decision:
    return Decision.deny(rule, detail, code=SKILL_DENIED)

"""`SkillPolicy`: who may use a skill where; `decide_skill_use` says whether a chat is one of these.

Pure. The gate of every account call and the tools that load and run skills ask the same function.
"""

from __future__ import annotations

import re
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, fail_closed
from kaged.kernel.identity import FRONT_END_NAME, chat_of_key
from kaged.kernel.service_ids import ServiceId

SKILL_RULE: Final = "service.skill"
SKILL_DENIED: Final = "capability_access_denied"

_NAMED: Final = re.compile(FRONT_END_NAME)
_PASSES: Final = Decision.allow(SKILL_RULE)


@dataclass(frozen=True, slots=True)
class SkillPolicy:
    """Who may use a skill where. `chat_types` and `chat_ids` are None when there is no limit.

    A chat of a named front end is listed with that name before its id and a blank between; an id
    alone is a chat of the front ends without a name.

    `capabilities` is None when the skill's own list is not known; the token's list counts then.
    """

    name: str
    enabled: bool = True
    chat_types: frozenset[str] | None = None
    chat_ids: frozenset[str] | None = None
    capabilities: frozenset[ServiceId] | None = None


@fail_closed(SKILL_RULE)
def decide_skill_use(policy: SkillPolicy, chat_type: str | None, chat: str | None) -> Decision:
    """Decide by what the operator and the skill's own file say about chats.

    `chat` is what `chat_key` returned.
    Where only some chats are allowed, an unknown one is not.
    """
    if not policy.enabled:
        return _deny(f"the skill {policy.name} is switched off")
    if policy.chat_types is not None and (chat_type or "").lower() not in policy.chat_types:
        return _deny(f"the skill {policy.name} may not be used in this kind of chat")
    if policy.chat_ids is not None and not _listed(policy.chat_ids, chat):
        return _deny(f"the skill {policy.name} may not be used in this chat")
    return _PASSES


def _listed(chat_ids: frozenset[str], chat: str | None) -> bool:
    provider, chat_id = chat_of_key(chat)
    if provider is not None and _NAMED.fullmatch(provider) is not None:
        return chat in chat_ids
    return chat_id in chat_ids


def _deny(detail: str) -> Decision:
    return Decision.deny(SKILL_RULE, detail, code=SKILL_DENIED)

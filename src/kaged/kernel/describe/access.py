"""Grants that a person gives when a call was refused, in words."""

from __future__ import annotations

from typing import Final

from kaged.kernel.access import AccessGrant, AccessKind, AccessScope
from kaged.kernel.capabilities import NetCapability
from kaged.kernel.describe.grants import describe_grant
from kaged.kernel.describe.sentence import Sentence
from kaged.kernel.net import parse_target
from kaged.kernel.policy import FsMode

NAMED_GRANTS: Final = {
    "shell": "it runs commands of its own choice inside its cage",
    "exec": "it runs programs of its own choice inside its cage",
    "services": "it may use people's accounts through ash-sb",
}
"""Why a named grant of a cage deserves a second look."""

SCOPE_WORDS: Final = {
    AccessScope.ONCE: "for this call",
    AccessScope.RUN: "until this run ends",
    AccessScope.SESSION: "in this session",
    AccessScope.ALWAYS: "from now on",
}


def describe_access(grant: AccessGrant) -> Sentence:
    """Return what a grant allows, with what a person should think about before."""
    match grant.kind:
        case AccessKind.PATH:
            where = "the whole project" if grant.target == "." else f"./{grant.target}"
            if grant.mode is FsMode.RW:
                return Sentence(f"read and change {where}")
            return Sentence(f"read {where}")
        case AccessKind.HOST:
            return describe_grant(NetCapability(parse_target(grant.target)))
        case AccessKind.CAPABILITY:
            return describe_named_grant(grant.target)
        case AccessKind.TOOL:
            return Sentence(f"use the tool {grant.target}")


def describe_named_grant(name: str) -> Sentence:
    """Return what a named grant of a cage allows."""
    words = f"use tools that ask for the grant {name}"
    return Sentence.dangerous_if(words, NAMED_GRANTS.get(name, ""))

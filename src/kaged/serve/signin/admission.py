"""`admit`: who somebody is that the provider vouches for, and whether they may come in.

Pure, and asked again at every request of a session: what the configuration no longer allows ends
with its reload, not with the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.oidc import OidcSection
from kaged.kernel.identity import PERSON_ID, RESERVED_PREFIXES, PersonFacts
from kaged.serve.signin.errors import SignInNotAllowed

_PERSON_ID: Final = re.compile(PERSON_ID)
MAX_GROUPS: Final = 1000
MAX_GROUP_CHARS: Final = 256
MAX_CLAIM_CHARS: Final = 256
EMAIL: Final = "email"

_SHOWN: Final = (EMAIL, "name", "preferred_username")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Somebody who signed in: what the provider says about them, and whether they operate."""

    facts: PersonFacts
    operator: bool


def admit(section: OidcSection, operator_id: str, claims: Mapping[str, JsonValue]) -> SignedIn:
    """Return who the claims describe.

    Raises:
        SignInNotAllowed: they have no usable id, or the configuration does not let them in.
    """
    return _admitted(
        section, operator_id, _person_id(section, claims), _groups(section, claims), _shown(claims)
    )


def admit_again(section: OidcSection, operator_id: str, facts: PersonFacts) -> SignedIn:
    """Return who somebody is by now who was let in before, without asking the provider.

    Raises:
        SignInNotAllowed: the configuration does not let them in any more.
    """
    if ("iss", section.issuer) not in facts.claims:
        raise SignInNotAllowed(
            f"{facts.person_id} signed in with another provider.", fix="sign in again"
        )
    return _admitted(section, operator_id, facts.person_id, facts.groups, facts.claims)


def _admitted(
    section: OidcSection,
    operator_id: str,
    person: str,
    groups: frozenset[str],
    shown: tuple[tuple[str, str], ...],
) -> SignedIn:
    operator = person in section.operators or not groups.isdisjoint(section.operator_groups)
    allowed = (
        operator
        or section.allow_everyone
        or person in section.allow_people
        or not groups.isdisjoint(section.allow_groups)
    )
    if not allowed:
        raise SignInNotAllowed(
            f"{person} may not use this daemon.",
            fix="ask the operator to name you in [auth.oidc] allow_people, or a group of yours in "
            "allow_groups",
        )
    if person == operator_id and not operator:
        # Accounts and records go by this id; nobody gets those of the operator by being named so.
        raise SignInNotAllowed(
            f"The id {person} is the operator's own.",
            fix="ask the operator to choose another [auth] operator",
        )
    named = {*section.allow_groups, *section.operator_groups}
    named.update(*section.roles.values(), *section.teams.values())
    facts = PersonFacts(
        person,
        _held(section.roles, groups),
        _held(section.teams, groups),
        shown,
        groups.intersection(named),
    )
    return SignedIn(facts, operator)


def kept_claims(section: OidcSection, claims: Mapping[str, JsonValue]) -> JsonObject:
    """Return the claims that `admit` looks at, and no others: what a session keeps."""
    names = {
        section.person_claim,
        section.groups_claim,
        section.groups_claim.partition(".")[0],
        "email_verified",
        "iss",
        "sub",
        *_SHOWN,
    }
    return {name: claims[name] for name in sorted(names) if name in claims}


def _person_id(section: OidcSection, claims: Mapping[str, JsonValue]) -> str:
    value = claims.get(section.person_claim)
    usable = isinstance(value, str) and _PERSON_ID.fullmatch(value) is not None
    if not isinstance(value, str) or not usable or value.startswith(RESERVED_PREFIXES):
        raise SignInNotAllowed(
            f"The claim {section.person_claim} is no usable id of a person.",
            fix="let the provider put it into its tokens, or set [auth.oidc] person_claim; letters,"
            " digits and . _ @ + = : - are allowed (128 at most)",
        )
    if section.person_claim == EMAIL and claims.get("email_verified") is not True:
        raise SignInNotAllowed(
            "The provider has not verified this email address.",
            fix="verify the address at the provider, or set [auth.oidc] person_claim to `sub`",
        )
    return value


def _groups(section: OidcSection, claims: Mapping[str, JsonValue]) -> frozenset[str]:
    found = claims.get(section.groups_claim)
    if found is None:
        outer, _, inner = section.groups_claim.partition(".")
        nested = claims.get(outer)
        found = nested.get(inner) if isinstance(nested, dict) else None
    listed = [found] if isinstance(found, str) else found
    if not isinstance(listed, list):
        return frozenset()
    groups = [one for one in listed if isinstance(one, str) and len(one) <= MAX_GROUP_CHARS]
    if len(groups) > MAX_GROUPS:
        raise SignInNotAllowed(
            f"The provider names more than {MAX_GROUPS} groups.",
            fix="let the provider send only the groups that this daemon uses",
        )
    return frozenset(groups)


def _held(words: Mapping[str, tuple[str, ...]], groups: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word, wanted in words.items() if not groups.isdisjoint(wanted))


def _shown(claims: Mapping[str, JsonValue]) -> tuple[tuple[str, str], ...]:
    names = [name for name in _SHOWN if name != EMAIL or claims.get("email_verified") is True]
    found = [(name, claims.get(name)) for name in ("iss", "sub", *names)]
    return tuple(
        sorted(
            (name, value)
            for name, value in found
            if isinstance(value, str) and len(value) <= MAX_CLAIM_CHARS and value.isprintable()
        )
    )

"""`[people]`, `[teams]` and `[auth.front_end]`: whom the operator names, what a front end may say.

An unknown key is an error here, not a warning: a list that was misspelled would leave everything
open that it was meant to close.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kaged.base import KagedError
from kaged.config.containers import ListOf, MapOf, Mapped
from kaged.config.problems import Severity
from kaged.config.records import RecordShape, empty_map, key, optional, record
from kaged.config.shapes import TextShape
from kaged.kernel.identity import (
    FRONT_END_NAME,
    FRONT_END_PREFIX,
    MAX_GROUPS,
    PERSON_ID,
    RESERVED_PREFIXES,
    People,
    PersonGrant,
    TeamGrant,
    is_group_name,
)

MAX_PEOPLE: Final = 1000
MAX_LISTED: Final = 200
MAX_CLAIMS: Final = 16
MAX_TEAMS: Final = 200

_UNNAMED: Final = [one for one in RESERVED_PREFIXES if one != FRONT_END_PREFIX]
_NAMED: Final = rf"(?!{'|'.join(_UNNAMED)}){PERSON_ID}"
_PERSON: Final = TextShape(
    max_chars=128,
    pattern=rf"\*|{_NAMED}",
    means="a person's id, or * for everybody else",
)
_LEAD: Final = TextShape(max_chars=128, pattern=_NAMED, means="a person's id")
_TEAM: Final = TextShape(
    max_chars=32,
    pattern=r"[a-z0-9][a-z0-9_-]*",
    means="a team's name (lower case, digits, _ and -)",
)
_PROJECT: Final = TextShape(max_chars=128, pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]*", means="a project")
_OPERATION: Final = TextShape(
    max_chars=256,
    pattern=r"[a-z0-9*][a-z0-9_*-]*(\.[A-Za-z0-9_*-]+)+|\*",
    means="an operation such as gog.email.list, gog.email.* or *",
)
_FRONT_END: Final = TextShape(
    max_chars=32, pattern=FRONT_END_NAME, means="the name of a front end (X-Kaged-Front-End)"
)
_CLAIM: Final = TextShape(max_chars=64, pattern=r"[a-z][a-z0-9_]*", means="the name of a claim")

# What means something to the daemon or to HTTP itself cannot mean something else as well.
_TAKEN: Final = frozenset(
    {"authorization", "cookie", "host", "origin", "content-length", "transfer-encoding"}
)

_TAKEN_PREFIXES: Final = (
    "x-kaged-user",
    "x-kaged-chat",
    "x-kaged-thread",
    "x-kaged-disp",
    "x-kaged-front",
    "sec-",
)


def _group(text: str) -> str:
    if not is_group_name(text):
        raise KagedError("is no name of a role or team", code="host_value_invalid", fix=_GROUP_FIX)
    return text


def _header(text: str) -> str:
    name = text.lower()
    if name in _TAKEN or name.startswith(_TAKEN_PREFIXES):
        raise KagedError(
            "has a meaning of its own",
            code="host_value_invalid",
            fix="name a header that only your front end sets, such as X-Kaged-Roles",
        )
    return name


_GROUP_FIX: Final = "use up to 128 printable characters without a comma, and none around them"
_GROUP: Final = Mapped(TextShape(max_chars=128), _group, "name")
HEADER: Final = Mapped(
    TextShape(max_chars=64, pattern=r"[A-Za-z][A-Za-z0-9-]*", means="the name of a header"),
    _header,
    "header",
)


@record
class FrontEndSection:
    """Headers in which a trusted front end says more about a person. What is not named is ignored.

    They count only from an address in `trusted_proxies`, together with `X-Kaged-User-Id`.
    """

    roles: str | None = optional(
        HEADER, "The header with roles, separated by commas.", default=None
    )
    teams: str | None = optional(
        HEADER, "The header with teams, separated by commas.", default=None
    )
    claims: Mapping[str, str] = key(
        MapOf(HEADER, _CLAIM, max_items=MAX_CLAIMS),
        "Claims by name, each with its header. Policy plugins see them.",
        default_factory=empty_map,
    )
    same_people: tuple[str, ...] = key(
        ListOf(_FRONT_END, max_items=MAX_LISTED, unique=True),
        "Named front ends whose ids of people are the daemon's: who has an equal id elsewhere is "
        "the same person. People of other named front ends are `from:<name>:<id>`.",
        default=(),
    )


@record
class PersonSection:
    """One person, as the operator knows them."""

    roles: tuple[str, ...] = key(
        ListOf(_GROUP, max_items=MAX_GROUPS, unique=True),
        "Roles, beside those that the front end names. Policy plugins decide on them.",
        default=(),
    )
    teams: tuple[str, ...] = key(
        ListOf(_GROUP, max_items=MAX_GROUPS, unique=True),
        "Teams, beside those that the front end names.",
        default=(),
    )
    projects: tuple[str, ...] | None = optional(
        ListOf(_PROJECT, max_items=MAX_LISTED, unique=True),
        "Ids or slugs of the projects they may use. Left out: every one. Empty: none.",
        default=None,
    )
    operations: tuple[str, ...] | None = optional(
        ListOf(_OPERATION, max_items=MAX_LISTED, unique=True),
        "Operations of capabilities they may call, such as `gog.email.list` or `gog.email.*`. "
        "Left out: every one. Empty: none.",
        default=None,
    )


@record
class TeamSection:
    """A team into which its leads invite people, and what those may use.

    It says nothing about people whom `[people]`, a front end or a sign-in puts into the team.
    """

    leads: tuple[str, ...] = key(
        ListOf(_LEAD, max_items=MAX_LISTED, unique=True),
        "The people, by id, who may invite others into this team.",
        default=(),
    )
    roles: tuple[str, ...] = key(
        ListOf(_GROUP, max_items=MAX_GROUPS, unique=True),
        "Roles of the people whom they invite.",
        default=(),
    )
    projects: tuple[str, ...] = key(
        ListOf(_PROJECT, max_items=MAX_LISTED, unique=True),
        "Ids or slugs of the projects that the invited may use. Left out: none.",
        default=(),
    )
    operations: tuple[str, ...] = key(
        ListOf(_OPERATION, max_items=MAX_LISTED, unique=True),
        "Operations of capabilities that the invited may call. Left out: none.",
        default=(),
    )


TEAMS: Final = MapOf(
    RecordShape(TeamSection, unknown=Severity.ERROR),
    _TEAM,
    max_items=MAX_TEAMS,
)
PEOPLE: Final = MapOf(
    RecordShape(PersonSection, unknown=Severity.ERROR),
    _PERSON,
    max_items=MAX_PEOPLE,
)


def people_of(sections: Mapping[str, PersonSection], teams: Mapping[str, TeamSection]) -> People:
    """Return the people and teams of the sections, with what each is allowed."""
    return People(
        MappingProxyType({name: _grant(one) for name, one in sections.items()}),
        MappingProxyType({name: _team(name, one) for name, one in teams.items()}),
    )


def _team(name: str, one: TeamSection) -> TeamGrant:
    invited = PersonGrant(
        frozenset(one.roles),
        frozenset({name}),
        frozenset(one.projects),
        frozenset(one.operations),
    )
    return TeamGrant(frozenset(one.leads), invited)


def _grant(one: PersonSection) -> PersonGrant:
    """Return what a section allows."""
    return PersonGrant(
        frozenset(one.roles),
        frozenset(one.teams),
        None if one.projects is None else frozenset(one.projects),
        None if one.operations is None else frozenset(one.operations),
    )

"""`Actor`: who acts, as the edge that let them in found out.

`PersonFacts` is what a verified source (a front end, a sign-in) says about a person, `PersonGrant`
what the operator allows them. `Actor.person` merges the two, by one rule for every source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.call_facts import Arrival

OWN_PROVIDER: Final = "kaged"
PRIVATE_CHAT: Final = "private"
UNKNOWN_PERSON: Final = "operator"
"""Who somebody is on record whom nobody authenticated."""

PERSON_ID: Final = r"[A-Za-z0-9@][A-Za-z0-9._@+=:-]{0,127}"
"""The pattern of a person's id: addresses, names, and ids of Matrix (`@ann:example.org`)."""

SERVICE_PREFIX: Final = "service:"
"""How the ids of service accounts begin, and those of nobody else."""

TEAM_PREFIX: Final = "team:"
"""How the ids of people begin who were invited into a team: `team:<team>:<name>`."""

FRONT_END_PREFIX: Final = "from:"
"""How the ids of people begin whom a named front end knows by ids of its own: `from:NAME:ID`."""

RESERVED_PREFIXES: Final = (SERVICE_PREFIX, TEAM_PREFIX, FRONT_END_PREFIX)
"""How no id begins that a front end or a sign-in names."""

FRONT_END_NAME: Final = r"[a-z][a-z0-9_-]{0,31}"
"""The pattern of a front end's name. An address, as those without a name go by, is none."""

_CHAT_SEPARATOR: Final = " "  # in no chat id, and in nothing that names a front end

MAX_GROUPS: Final = 64
"""How many roles, and how many teams, a source may name."""

MAX_GROUP_CHARS: Final = 128


def chat_key(provider: str | None, chat_id: str | None) -> str | None:
    """Return by what a chat is known: its id, and whose id it is. Equal ids are not equal chats."""
    if chat_id is None or provider in {None, OWN_PROVIDER}:
        return chat_id
    return f"{provider}{_CHAT_SEPARATOR}{chat_id}"


def chat_of_key(key: str | None) -> tuple[str | None, str | None]:
    """Return the provider and the id of what `chat_key` made."""
    if key is None or _CHAT_SEPARATOR not in key:
        return None, key
    provider, _, chat_id = key.partition(_CHAT_SEPARATOR)
    return provider, chat_id


class VouchedBy(StrEnum):
    """What vouched for an actor."""

    UNIX = "unix"
    BEARER = "bearer"
    COOKIE = "cookie"
    SIGN_IN = "sign_in"
    """A browser whose user signed in at the provider of OpenID Connect."""
    ACCESS_TOKEN = "access_token"  # noqa: S105 - the name of a kind, not a secret
    """A token that the provider gave to a program of that person."""
    SERVICE_ACCOUNT = "service_account"
    INVITATION = "invitation"
    """What a person got who accepted an invitation of the operator's."""
    INSECURE = "insecure"
    OPEN = "open"


def is_group_name(text: str) -> bool:
    """Return whether a text can name a role or a team: printable, without commas, not too long."""
    bare = text.strip() == text
    return 0 < len(text) <= MAX_GROUP_CHARS and bare and text.isprintable() and "," not in text


@dataclass(frozen=True, slots=True)
class PersonFacts:
    """What a verified source says about a person. The source has bounded every list and text.

    Claims are pairs of name and value, sorted, so that the facts can be compared and hashed.
    `groups` are those of the provider at sign-in that the configuration names somewhere: whether
    they still let the person in can be asked again without the provider.
    """

    person_id: str
    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    claims: tuple[tuple[str, str], ...] = ()
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PersonGrant:
    """What the operator says about a person, and allows them.

    `projects` holds names or ids of projects, `operations` patterns of operations of capabilities;
    None allows every one, an empty set none.
    """

    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    projects: frozenset[str] | None = None
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TeamGrant:
    """A team into which `leads` may invite people, and what those are allowed."""

    leads: frozenset[str]
    invited: PersonGrant


EVERYBODY_ELSE: Final = "*"
EVERYTHING: Final = PersonGrant()
NOTHING: Final = PersonGrant(projects=frozenset(), operations=frozenset())


@dataclass(frozen=True, slots=True)
class People:
    """The people and teams whom the operator has named, with what each is allowed.

    Where nobody is named, everybody whom a verified source names may use everything that is open
    to people. As soon as somebody is named, the others get what stands under `*`, or nothing.
    Who was invited into a team gets what the team says, and nothing when it is gone.
    """

    grants: Mapping[str, PersonGrant] = field(default_factory=lambda: MappingProxyType({}))
    teams: Mapping[str, TeamGrant] = field(default_factory=lambda: MappingProxyType({}))

    def grant_of(self, person_id: str) -> PersonGrant:
        """Return what a person is allowed."""
        team = team_of(person_id)
        if team is not None:
            found = self.teams.get(team)
            return NOTHING if found is None else found.invited
        if not self.grants:
            return EVERYTHING
        named = self.grants.get(person_id)
        return self.grants.get(EVERYBODY_ELSE, NOTHING) if named is None else named

    def led_by(self, person_id: str) -> frozenset[str]:
        """Return the teams into which a person may invite."""
        return frozenset(name for name, team in self.teams.items() if person_id in team.leads)


def team_of(person_id: str) -> str | None:
    """Return the team into which somebody was invited, by their id; None for everybody else."""
    if not person_id.startswith(TEAM_PREFIX):
        return None
    return person_id.removeprefix(TEAM_PREFIX).partition(":")[0]


class ActorKey(NamedTuple):
    """Who somebody is and where, without what they may do: that changes while they stay."""

    person_id: str | None
    is_person: bool
    vouched_by: VouchedBy
    provider: str | None
    chat_type: str | None
    chat_id: str | None
    thread_id: str | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, from where, and who vouched for that.

    An edge makes it once, from what it verified, and never from a prompt or a parameter.
    `person_id` is None where nobody was authenticated (insecure mode). With `is_person` it is one
    of the people who are not the operator: whom a trusted front end named, in the chat that it
    named, who signed in, or a service account. Otherwise the operator acts.
    Whoever has no chat type cannot use what is kept for private chats.

    `roles`, `teams` and `claims` say more about the person; policies decide on them. `projects` and
    `operations` are what the operator allows them: None is everything, an empty set nothing.
    `facts` is what the source alone said; a later moment can add to it what is allowed then.

    `provider` is whose ids of chats these are: a front end by its name or address, or ourselves.
    `thread_id` is the thread within the chat, and the two source names are what the chat calls the
    person; they route and describe, and decide nothing.

    `request_id` says under which request they act, `arrival` what policies may see of it. They are
    no part of who they are: the same actor in two requests is equal.
    """

    person_id: str | None
    vouched_by: VouchedBy
    chat_type: str | None = None
    chat_id: str | None = None
    provider: str | None = None
    is_person: bool = False
    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    claims: tuple[tuple[str, str], ...] = ()
    projects: frozenset[str] | None = None
    operations: frozenset[str] | None = None
    agent_path: str | None = None
    skill: str | None = None
    thread_id: str | None = None
    source_username: str | None = None
    source_display_name: str | None = None
    facts: PersonFacts | None = None
    request_id: str = field(default="", compare=False, repr=False)
    arrival: Arrival | None = field(default=None, compare=False, repr=False)

    @classmethod
    def operator(cls, person_id: str | None, vouched_by: VouchedBy, request_id: str = "") -> Actor:
        """Return the operator on a listener of our own, which counts as a private chat (SC-AMB-38).

        In insecure mode, without a person, there is no chat either.
        """
        if person_id is None:
            return cls(None, vouched_by, request_id=request_id)
        return cls(
            person_id, vouched_by, PRIVATE_CHAT, provider=OWN_PROVIDER, request_id=request_id
        )

    @classmethod
    def person(
        cls, facts: PersonFacts, grant: PersonGrant, vouched_by: VouchedBy, request_id: str = ""
    ) -> Actor:
        """Return a person, who is not the operator, in no chat.

        Roles and teams are those of the facts and of the grant together; claims are the source's
        alone, projects and operations the operator's alone. So a source can say who somebody is,
        and never widen what they may use.
        """
        return cls(
            facts.person_id,
            vouched_by,
            is_person=True,
            roles=facts.roles | grant.roles,
            teams=facts.teams | grant.teams,
            claims=facts.claims,
            projects=grant.projects,
            operations=grant.operations,
            facts=facts,
            request_id=request_id,
        )

    @property
    def chat(self) -> str | None:
        """Return by what the chat is known, that no other front end's chat has."""
        return chat_key(self.provider, self.chat_id)

    @property
    def key(self) -> ActorKey:
        """Return by what the same actor is found again, in the same place."""
        return ActorKey(
            self.person_id,
            self.is_person,
            self.vouched_by,
            self.provider,
            self.chat_type,
            self.chat_id,
            self.thread_id,
        )

    @property
    def label(self) -> str:
        """Return a short name for logs and the audit trail."""
        return self.person_id or f"anonymous/{self.vouched_by}"

    @property
    def operator_name(self) -> str:
        """Return the name under which calls and runs are kept, also where nobody is known."""
        return self.person_id or UNKNOWN_PERSON

    @property
    def if_known(self) -> Actor | None:
        """Return the actor whose accounts may be used: None where nobody is known."""
        return None if self.person_id is None else self

    def in_request(self, request_id: str) -> Actor:
        """Return the same actor under another request."""
        return replace(self, request_id=request_id)

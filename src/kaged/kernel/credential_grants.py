"""`decide_credential`: whether the operator lets one cage use one credential.

A project file asks for a credential by name; that alone gives nothing. The operator's
`[credentials.NAME.for]` names who may have it, and every list that it holds must fit.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, fail_closed

EVERY = "*"


@dataclass(frozen=True, slots=True)
class CredentialGrant:
    """Whom the operator lets use a credential.

    Agents need their project among `projects`; `agents`, `people` and `skills` narrow that down
    when they are given. `mcp` are names of outside MCP servers. `*` is every one.
    """

    projects: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentCage:
    """Whose cage an agent's command runs in. `projects` are the names the project goes by.

    `person` and `skill` are None where nobody is known to be acted for, and for a command that
    belongs to no skill.
    """

    projects: frozenset[str]
    agent: str
    person: str | None = None
    skill: str | None = None


@dataclass(frozen=True, slots=True)
class ServerCage:
    """The cage of an outside MCP server."""

    name: str


@fail_closed("credential.grant")
def decide_credential(
    name: str, grant: CredentialGrant | None, user: AgentCage | ServerCage
) -> Decision:
    """Decide whether a cage that asks for the credential `name` may use it.

    `grant` is None where the operator has configured no credential of that name.
    """
    if grant is None:
        return Decision.deny(
            "credential.unknown",
            f"There is no credential {name} on this machine.",
            f"add it with `kaged credential add {name}`, or take it out of the project file",
        )
    if isinstance(user, AgentCage):
        return _agent(name, grant, user)
    if EVERY in grant.mcp or user.name in grant.mcp:
        return Decision.allow("credential.grant", name)
    return _refused(name, "mcp", f"the MCP server {user.name}")


def _agent(name: str, grant: CredentialGrant, user: AgentCage) -> Decision:
    if EVERY not in grant.projects and not user.projects & frozenset(grant.projects):
        return _refused(name, "projects", "this project")
    if grant.agents and not any(fnmatchcase(user.agent, one) for one in grant.agents):
        return _refused(name, "agents", f"the agent {user.agent}")
    for listed, wanted, key, words in (
        (grant.people, user.person, "people", "the person that the agent acts for"),
        (grant.skills, user.skill, "skills", "a command that belongs to none of its skills"),
    ):
        if listed and EVERY not in listed and wanted not in listed:
            return _refused(name, key, words)
    return Decision.allow("credential.grant", name)


def _refused(name: str, key: str, words: str) -> Decision:
    return Decision.deny(
        "credential.grant",
        f"The credential {name} is not granted to {words}.",
        f"add it to `{key}` of [credentials.{name}.for] in config.toml, if that is meant",
    )

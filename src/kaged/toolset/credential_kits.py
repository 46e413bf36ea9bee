"""`with_credentials`: the credentials that an agent's project asks for, in its commands' cages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kaged.credentials.cage_kit import CageKits
from kaged.kernel.credential_grants import AgentCage
from kaged.kernel.policy import CagePolicy, CageState
from kaged.toolbox.shell.launch import Attach, Attachment, ShellCommand

ProjectNames = Callable[[str], frozenset[str]]
"""Returns what a loaded project goes by: its id, its slug and its folder."""


def with_credentials(kits: CageKits, names_of: ProjectNames, attach: Attach) -> Attach:
    """Return what gives a caged command its credentials, beside what it gets."""

    def both(policy: CagePolicy, command: ShellCommand) -> Attachment:
        added = attach(policy, command)
        if not policy.credentials:
            return added
        kit = kits.kit(
            f"shell {command.caller}",
            agent_cage(command, names_of),
            policy.credentials,
            scratch_home=policy.state is CageState.EPHEMERAL,
        )
        return replace(added, kit=kit)

    return both


def agent_cage(command: ShellCommand, names_of: ProjectNames) -> AgentCage:
    """Return whose cage a command runs in."""
    who, skill = command.identity, command.skill
    return AgentCage(
        projects=names_of(command.project_id),
        agent=command.caller,
        person=None if who is None else who.person_id,
        skill=None if skill is None else skill.name,
    )

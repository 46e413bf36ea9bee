"""`CageKits`: what one cage gets of the credentials that it asks for and is granted.

Placeholders are made anew for every cage: one that is carried elsewhere is worth nothing there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import CageRequest, ShownFile
from kaged.cage.gate_port import BoundHosts
from kaged.config.problems import ConfigFileInvalid
from kaged.credentials.tool_files import ShownCredential, tool_files
from kaged.credentials.trust_files import VARIABLES, TrustFiles
from kaged.credentials.value_sources import CredentialValues
from kaged.kernel.bindings import (
    PLACEHOLDER_ENTROPY_BYTES,
    CageCredential,
    CageCredentials,
    NoValue,
    NoValueReason,
    SecretValue,
    ValueOf,
    new_placeholder,
)
from kaged.kernel.credential_grants import AgentCage, ServerCage, decide_credential
from kaged.kernel.decision import Decision
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CagePolicy, CageState

if TYPE_CHECKING:
    from kaged.config.credentials_section import CredentialSection
    from kaged.config.settings import Settings

MAX_TOLD: Final = 1000

CageUser: TypeAlias = AgentCage | ServerCage

_log = get_logger("kaged.credentials")


class BoundGate(BoundHosts, Protocol):
    """Serves the bound hosts of one cage."""

    @property
    def authority_pem(self) -> str:
        """The certificate that the programs of the cage have to trust."""
        ...


OpenGate: TypeAlias = Callable[[CageCredentials, ValueOf, str], BoundGate]
"""Opens the gate for what one cage holds; the text says whose cage it is."""


@dataclass(frozen=True, slots=True)
class CageKit:
    """What is added to one cage; `held` is what its gate knows of it."""

    held: CageCredentials = field(default_factory=CageCredentials)
    env: tuple[tuple[str, str], ...] = ()
    files: tuple[ShownFile, ...] = ()
    targets: tuple[NetTarget, ...] = ()
    bound: BoundHosts | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the credentials that are in the cage."""
        return self.held.names


NOTHING: Final = CageKit()


def with_kit(policy: CagePolicy, kit: CageKit) -> CagePolicy:
    """Return a policy with what a kit implies: its hosts, and of the credentials those it has."""
    if not kit.held and not policy.credentials:
        return policy
    net = tuple(dict.fromkeys((*policy.net, *kit.targets)))
    return replace(policy, net=net, credentials=kit.names)


OnRefused: TypeAlias = Callable[[str, CageUser, str, Decision], None]
"""Called with a credential's name, who asked in which cage, and why it is not there."""


class CageKits:
    """Decides what a cage gets, each time that one is started."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        values: CredentialValues,
        open_gate: OpenGate,
        on_refused: OnRefused,
        trust: TrustFiles | None = None,
    ) -> None:
        self._settings = settings
        self._values = values
        self._open_gate = open_gate
        self._on_refused = on_refused
        self._trust = trust or TrustFiles()
        self._told: dict[tuple[str, CageUser, str], None] = {}

    def kit(
        self, what: str, user: CageUser, asked: Iterable[str], *, scratch_home: bool = True
    ) -> CageKit:
        """Return what a cage gets that asks for these credentials; `what` is the cage's name."""
        shown: dict[str, CredentialSection] = {}
        taken: dict[str, str] = {}
        for name in asked:
            decision, section = self.decide(name, user)
            if section is not None:
                other = next((taken[one] for one in section.shown.env if one in taken), None)
                if other is not None:
                    section, decision = None, _same_variable(name, other)
            if section is None:
                self._refused(name, user, what, decision)
                continue
            self._told = {one: None for one in self._told if one[:2] != (name, user)}
            taken |= dict.fromkeys(section.shown.env, name)
            shown[name] = section
        if not shown:
            return NOTHING
        return self._kit(shown, self._value_for(user), what, scratch_home=scratch_home)

    def added_to(self, request: CageRequest, user: CageUser) -> CageRequest:
        """Return a request with what its cage gets of the credentials that its policy asks for."""
        policy = request.policy
        kit = self.kit(
            request.name,
            user,
            policy.credentials,
            scratch_home=request.home is None and policy.state is CageState.EPHEMERAL,
        )
        return replace(
            request,
            policy=with_kit(policy, kit),
            fixed_env=(*request.fixed_env, *kit.env),
            files=(*request.files, *kit.files),
            bound=kit.bound,
        )

    def trial(self, name: str, section: CredentialSection) -> CageKit:
        """Return what the operator's own test of a credential gets: that one, asked or not."""
        return self._kit({name: section}, self._values.value_of, f"test of {name}")

    def _kit(
        self,
        sections: Mapping[str, CredentialSection],
        value_of: ValueOf,
        what: str,
        *,
        scratch_home: bool = True,
    ) -> CageKit:
        shown = {
            name: ShownCredential(section, new_placeholder(os.urandom(PLACEHOLDER_ENTROPY_BYTES)))
            for name, section in sections.items()
        }
        held = CageCredentials(
            CageCredential(one.section.binding(name), one.placeholder)
            for name, one in shown.items()
        )
        gate = self._open_gate(held, value_of, what)
        files, found_by = tool_files(shown.values(), scratch_home=scratch_home)
        variables = (
            (variable, one.placeholder)
            for one in shown.values()
            for variable in one.section.shown.env
        )
        return CageKit(
            held=held,
            env=(*VARIABLES, *found_by, *variables),
            files=(*self._trust.of(gate.authority_pem), *files),
            targets=held.targets,
            bound=gate,
        )

    def decide(self, name: str, user: CageUser) -> tuple[Decision, CredentialSection | None]:
        """Return whether a cage may use a credential now, and its section if so."""
        return decide_for_cage(self._settings(), name, user)

    def _value_for(self, user: CageUser) -> ValueOf:
        async def value_of(name: str) -> SecretValue | NoValue:
            # The grant may have been taken away while the cage was running.
            decision, _ = self.decide(name, user)
            if not decision.allowed:
                return NoValue(NoValueReason.REVOKED, decision.detail, decision.remedy)
            return await self._values.value_of(name)

        return value_of

    def _refused(self, name: str, user: CageUser, what: str, decision: Decision) -> None:
        # Each command of an agent asks again: it is told once, and again when it has changed.
        key = (name, user, decision.detail)
        if key in self._told:
            return
        self._told[key] = None
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        _log.warning("credential.not_granted", binding=name, cage=what, reason=decision.detail)
        self._on_refused(name, user, what, decision)


def decide_for_cage(
    settings: Settings, name: str, user: CageUser, *, for_whom: bool = True
) -> tuple[Decision, CredentialSection | None]:
    """Return whether a cage may use a credential by these settings, and its section if so.

    Without `for_whom` it may do so for some person, or in a command of some skill.
    """
    try:
        section = settings.daemon.value.credentials.get(name)
    except ConfigFileInvalid as error:
        first = error.problems[0]
        return Decision.deny("credential.invalid", str(first), first.fix), None
    grant = None if section is None else section.granted.grant()
    if grant is not None and not for_whom:
        grant = replace(grant, people=(), skills=())
    decision = decide_credential(name, grant, user)
    return decision, section if decision.allowed else None


def _same_variable(name: str, other: str) -> Decision:
    return Decision.deny(
        "credential.variable",
        f"The credentials {other} and {name} name the same variable.",
        f"give {name} another variable under `as` of [credentials.{name}]",
    )

"""`DenyRules`: calls that are not to happen, written so that anybody can read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, field_validator

from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions, SecurityExtension

_NEEDS = {
    "roles": {"read_roles"},
    "teams": {"read_teams"},
    "users": {"read_subject", "read_roles", "read_teams", "read_claims", "read_permissions"},
    "labels": {"read_labels", "append_labels"},
    "agents": {"read_agent"},
}


class Circumstances(Options):
    """What must be so: every given part, of each part any of the values."""

    users: list[str] = Field(default_factory=list)
    roles: list[str] = Field(default_factory=list)
    teams: list[str] = Field(default_factory=list)
    labels: list[str] = Field(default_factory=list)
    agents: list[str] = Field(default_factory=list)
    environments: list[str] = Field(default_factory=list)
    args: dict[str, str] = Field(default_factory=dict)


class Rule(Options):
    """One thing that is not to happen."""

    deny: list[str] = Field(min_length=1)
    when: Circumstances = Circumstances()
    unless: Circumstances | None = None
    because: str = Field(min_length=1)

    @field_validator("deny", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class DenyOptions(Options):
    """The rules, looked at from top to bottom."""

    rules: list[Rule] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class _CompiledRule:
    number: int
    because: str
    names: Callable[[str], bool]
    when: Callable[[ToolPreInvokePayload, Extensions | None], bool]
    unless: Callable[[ToolPreInvokePayload, Extensions | None], bool]


class DenyRules(Plugin):
    """Denies tool calls that match a rule.

    A rule about users, roles, teams, labels or agents needs the capability to read them; loading
    refuses a rule that could never see what it asks about.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(DenyOptions, config)
        for number, rule in enumerate(options.rules, 1):
            for part in (rule.when, rule.unless):
                if part is not None:
                    _require_sight(number, part, config.capabilities)
        self._rules = [
            _CompiledRule(
                number=number,
                because=rule.because,
                names=compile_names(rule.deny),
                when=_compile(rule.when),
                unless=_never if rule.unless is None else _compile(rule.unless),
            )
            for number, rule in enumerate(options.rules, 1)
        ]

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny when the first matching rule says so."""
        for rule in self._rules:
            if (
                rule.names(payload.name)
                and rule.when(payload, extensions)
                and not rule.unless(payload, extensions)
            ):
                return PluginResult(
                    continue_processing=False,
                    violation=PluginViolation(
                        reason=rule.because,
                        description=f"rule {rule.number} denies {payload.name}: {rule.because}",
                        code="denied_by_rule",
                        details={"rule": rule.number, "tool": payload.name},
                        http_status_code=403,
                    ),
                )
        return None


def _require_sight(number: int, part: Circumstances, capabilities: frozenset[str]) -> None:
    for name, any_of in _NEEDS.items():
        if getattr(part, name) and not any_of & capabilities:
            needed = "read_subject" if name == "users" else max(any_of)
            raise ValueError(f"rule {number} asks about {name}: add the capability {needed}")


def _compile(part: Circumstances) -> Callable[[ToolPreInvokePayload, Extensions | None], bool]:
    users = frozenset(part.users)
    roles = frozenset(part.roles)
    teams = frozenset(part.teams)
    labels = frozenset(part.labels)
    agents = compile_names(part.agents) if part.agents else None
    environments = frozenset(part.environments)
    args = {name: compile_names([pattern]) for name, pattern in part.args.items()}

    def holds(payload: ToolPreInvokePayload, extensions: Extensions | None) -> bool:
        shown = extensions or _NOTHING
        security = shown.security or _NO_SECURITY
        subject = security.subject
        if users and (subject is None or subject.id not in users):
            return False
        if roles and (subject is None or not roles & subject.roles):
            return False
        if teams and (subject is None or not teams & subject.teams):
            return False
        if labels and not labels & security.labels:
            return False
        agent_id = None if shown.agent is None else shown.agent.agent_id
        if agents is not None and not agents(agent_id or ""):
            return False
        environment = None if shown.request is None else shown.request.environment
        if environments and environment not in environments:
            return False
        given = payload.args or {}
        return all(test(str(given.get(name, ""))) for name, test in args.items())

    return holds


def _never(_payload: ToolPreInvokePayload, _extensions: Extensions | None) -> bool:
    return False


_NOTHING = Extensions()
_NO_SECURITY = SecurityExtension()

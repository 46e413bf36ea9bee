"""`TokenBudget`, `CostBudget`: so many tokens or dollars per person, team and day, no more."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, field_validator, model_validator

from kaged.base import Clock, SystemClock
from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.origin import COST_PROPERTY
from kaged.pipeline.plugin import Plugin, hook
from kaged.pipeline.policies.hours import zone_of
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions, SubjectExtension

NOBODY = "(nobody)"
MAX_NAMES = 100_000
"""People and teams counted in one day; who comes after that shares one count."""

_MAX_FILE_BYTES = 32 * 1024 * 1024
_HOOKS = frozenset({"cmf.llm_output", "cmf.llm_input"})


Limit: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class BudgetOptions(Options):
    """How much, and where the count is kept."""

    person: Limit | None = None
    team: Limit | None = None
    people: dict[str, Limit] = Field(default_factory=dict)
    teams: dict[str, Limit] = Field(default_factory=dict)
    zone: str = "UTC"
    state_file: str

    @field_validator("zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        zone_of(value)
        return value

    @field_validator("state_file")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not Path(value).expanduser().is_absolute():
            raise ValueError("write an absolute path")
        return value


class TokenOptions(BudgetOptions):
    """A budget of tokens, of which there are whole numbers."""

    @model_validator(mode="after")
    def _whole(self) -> TokenOptions:
        given = (self.person, self.team, *self.people.values(), *self.teams.values())
        if any(one is not None and not one.is_integer() for one in given):
            raise ValueError("tokens are whole numbers")
        return self


class _Budget(Plugin):
    """Denies messages to models and tool calls of a person whose budget of the day is used up.

    An answer of a model is counted when it is there, so the last one may go beyond the budget.
    `person` and `team` are everybody's budget, `people` and `teams` those of some. The count
    survives a restart. Needs `read_subject`, and `read_teams` for teams.
    """

    edits = False
    what: ClassVar[str]
    options_model: ClassVar[type[BudgetOptions]]

    def __init__(self, config: PluginConfig, clock: Clock | None = None) -> None:
        super().__init__(config)
        options = read_options(self.options_model, config)
        if missing := _HOOKS.difference(config.hooks):
            raise ValueError(f"{type(self).__name__} needs the hooks {', '.join(sorted(missing))}")
        if not {"read_subject", "read_teams"} & config.capabilities:
            raise ValueError(f"{type(self).__name__} needs the capability read_subject")
        if (options.team or options.teams) and "read_teams" not in config.capabilities:
            raise ValueError("a budget of teams needs the capability read_teams")
        self._options = options
        self._zone = zone_of(options.zone)
        self._file = Path(options.state_file).expanduser()
        self._now_ms = (clock or SystemClock()).now_ms
        self._day = ""
        self._used: dict[str, float] = {}

    async def initialize(self) -> None:
        """Read the count. Raises ValueError for a file that is something else."""
        self._read()

    @hook(["cmf.llm_input", "tool_pre_invoke", "agent_pre_invoke"])
    async def before(
        self, payload: Any, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny what would spend more."""
        self._turn_the_page()
        for key, limit in self._budgets(_subject(extensions)):
            used = self._used.get(key, 0)
            if used >= limit:
                kind, _, name = key.partition(":")
                return _denial(
                    f"the {self.what} of {kind} {name} are used up for today",
                    f"{self.shown(used)} of {self.shown(limit)} {self.what} were used; there are "
                    "more tomorrow",
                    {"of": key, "used": used, "limit": limit},
                )
        return None

    @hook("cmf.llm_output")
    async def after(
        self, payload: Any, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Count what an answer took."""
        budgets = self._budgets(_subject(extensions))
        if not budgets:
            return None
        amount = self.amount(extensions)
        if amount is None:
            return self.uncounted(extensions)
        if amount > 0:
            self._turn_the_page()
            for key, _ in budgets:
                self._used[key] = round(self._used.get(key, 0) + amount, 9)
            self._write()
        return None

    @abstractmethod
    def amount(self, extensions: Extensions | None) -> float | None:
        """Return what an answer took; None when nobody knows."""

    @abstractmethod
    def shown(self, amount: float) -> str:
        """Return an amount as people read it."""

    def uncounted(self, extensions: Extensions | None) -> PluginResult[Any] | None:
        """Return what to do with an answer of which nobody knows what it took."""
        return None

    def _budgets(self, subject: SubjectExtension | None) -> list[tuple[str, float]]:
        """Return the counts that a call belongs to, each with its limit."""
        options = self._options
        name = NOBODY if subject is None else subject.id
        found: list[tuple[str, float]] = []
        limit = options.people.get(name, options.person)
        if limit is not None:
            found.append((self._key("person", name), limit))
        for team in sorted(frozenset[str]() if subject is None else subject.teams):
            limit = options.teams.get(team, options.team)
            if limit is not None:
                found.append((self._key("team", team), limit))
        return found

    def _key(self, kind: str, name: str) -> str:
        key = f"{kind}:{name}"
        if key not in self._used and len(self._used) >= MAX_NAMES:
            return f"{kind}:(others)"
        return key

    def _turn_the_page(self) -> None:
        today = datetime.fromtimestamp(self._now_ms() / 1000, tz=UTC).astimezone(self._zone)
        day = today.date().isoformat()
        if day != self._day:
            self._day, self._used = day, {}

    def _read(self) -> None:
        try:
            with self._file.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ValueError(f"state_file cannot be read: {error.strerror}") from error
        try:
            found = json.loads(text)
            day, used = str(found["day"]), {str(k): float(v) for k, v in found["used"].items()}
            mine = found.get("of", TokenBudget.what) == self.what
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"state_file is not a count of {self.what}; move it away") from error
        if not mine or not all(one >= 0 for one in used.values()):
            raise ValueError(f"state_file is not a count of {self.what}; name another one")
        self._day, self._used = day, used

    def _write(self) -> None:
        fresh = self._file.with_name(f"{self._file.name}.new")
        text = json.dumps({"of": self.what, "day": self._day, "used": self._used})
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(self._file)


class TokenBudget(_Budget):
    """A budget of tokens."""

    depends_on = "the tokens that were used today"
    what = "tokens"
    options_model = TokenOptions

    def amount(self, extensions: Extensions | None) -> float | None:
        """Return the tokens of an answer."""
        completion = None if extensions is None else extensions.completion
        tokens = None if completion is None else completion.tokens
        return None if tokens is None else tokens.total_tokens

    def shown(self, amount: float) -> str:
        """Return whole tokens."""
        return f"{amount:.0f}"


class CostBudget(_Budget):
    """A budget of US dollars, by the prices that `kaged usage` counts with.

    An answer whose price nobody knows is denied: what cannot be counted cannot be kept to.
    """

    depends_on = "the money that was spent today"
    what = "dollars"
    options_model = BudgetOptions

    def amount(self, extensions: Extensions | None) -> float | None:
        """Return what the host says that an answer cost."""
        meta = None if extensions is None else extensions.meta
        said = None if meta is None else meta.properties.get(COST_PROPERTY)
        return None if said is None else float(said)

    def shown(self, amount: float) -> str:
        """Return dollars; calls cost less than a cent."""
        return f"{amount:.4f}"

    def uncounted(self, extensions: Extensions | None) -> PluginResult[Any] | None:
        """Deny it, and say how the price becomes known."""
        properties = (
            {} if extensions is None or extensions.meta is None else extensions.meta.properties
        )
        alias = properties.get("model_alias", "<alias>")
        return _denial(
            f"nobody knows what the model {alias} costs",
            f"[models.{alias}.usd_per_million] in local.toml says it: input, output",
            {"model": alias},
            code="price_unknown",
        )


def _denial(
    reason: str, description: str, details: dict[str, Any], code: str = "budget_used_up"
) -> PluginResult[Any]:
    return PluginResult(
        continue_processing=False,
        violation=PluginViolation(
            reason=reason,
            description=description,
            code=code,
            details=details,
            http_status_code=429,
        ),
    )


def _subject(extensions: Extensions | None) -> SubjectExtension | None:
    security = None if extensions is None else extensions.security
    return None if security is None else security.subject

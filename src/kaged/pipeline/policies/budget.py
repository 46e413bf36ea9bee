"""`TokenBudget`: so many tokens of models per person, team and day, no more."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from kaged.base import Clock, SystemClock
from kaged.pipeline.contexts import PluginContext
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


class BudgetOptions(Options):
    """How many tokens, and where the count is kept."""

    person: int | None = Field(default=None, ge=1)
    team: int | None = Field(default=None, ge=1)
    people: dict[str, int] = Field(default_factory=dict)
    teams: dict[str, int] = Field(default_factory=dict)
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


class TokenBudget(Plugin):
    """Denies messages to models and tool calls of a person whose tokens of the day are used up.

    An answer of a model is counted when it is there, so the last one may go beyond the budget.
    `person` and `team` are everybody's budget, `people` and `teams` those of some. The count
    survives a restart. Needs `read_subject`, and `read_teams` for teams.
    """

    depends_on = "the tokens that were used today"
    edits = False

    def __init__(self, config: PluginConfig, clock: Clock | None = None) -> None:
        super().__init__(config)
        options = read_options(BudgetOptions, config)
        if missing := _HOOKS.difference(config.hooks):
            raise ValueError(f"TokenBudget needs the hooks {', '.join(sorted(missing))}")
        if not {"read_subject", "read_teams"} & config.capabilities:
            raise ValueError("TokenBudget needs the capability read_subject")
        if (options.team or options.teams) and "read_teams" not in config.capabilities:
            raise ValueError("a budget of teams needs the capability read_teams")
        self._options = options
        self._zone = zone_of(options.zone)
        self._file = Path(options.state_file).expanduser()
        self._now_ms = (clock or SystemClock()).now_ms
        self._day = ""
        self._used: dict[str, int] = {}

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
                return PluginResult(
                    continue_processing=False,
                    violation=PluginViolation(
                        reason=f"the tokens of {kind} {name} are used up for today",
                        description=f"{used} of {limit} tokens were used; there are more tomorrow",
                        code="budget_used_up",
                        details={"of": key, "used": used, "limit": limit},
                        http_status_code=429,
                    ),
                )
        return None

    @hook("cmf.llm_output")
    async def after(
        self, payload: Any, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Count what an answer cost."""
        completion = None if extensions is None else extensions.completion
        tokens = None if completion is None else completion.tokens
        if tokens is None or tokens.total_tokens <= 0:
            return None
        self._turn_the_page()
        for key, _ in self._budgets(_subject(extensions)):
            self._used[key] = self._used.get(key, 0) + tokens.total_tokens
        self._write()
        return None

    def _budgets(self, subject: SubjectExtension | None) -> list[tuple[str, int]]:
        """Return the counts that a call belongs to, each with its limit."""
        options = self._options
        name = NOBODY if subject is None else subject.id
        found: list[tuple[str, int]] = []
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
            day, used = str(found["day"]), {str(k): int(v) for k, v in found["used"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("state_file is not a count of tokens; move it away") from error
        self._day, self._used = day, used

    def _write(self) -> None:
        fresh = self._file.with_name(f"{self._file.name}.new")
        text = json.dumps({"day": self._day, "used": self._used})
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(self._file)


def _subject(extensions: Extensions | None) -> SubjectExtension | None:
    security = None if extensions is None else extensions.security
    return None if security is None else security.subject

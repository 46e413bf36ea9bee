"""`ModelCatalogue`: the operator's models by alias, made when first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from kaged.base import Clock, Ids, JsonObject, JsonValue
from kaged.base.file_stamp import Stamp, stamp_of
from kaged.base.lazy_dataclass import dataclass
from kaged.config.localconfig import ModelEntry
from kaged.config.sections import Sections
from kaged.kernel.call_facts import ModelIdentity
from kaged.models.errors import ModelError
from kaged.models.fallback import FallbackModel
from kaged.models.provided import PROVIDED, AskProvider, ProjectModel, ProvidedModel, WindowOf
from kaged.models.retrying import Attempts, RetryingModel, RetryPolicy, Sleep
from kaged.models.script import ModelScript
from kaged.models.scripted import BUILT_IN, SCRIPTED, ScriptedModel
from kaged.models.scripted import DEFAULT_CONTEXT_TOKENS as SCRIPTED_CONTEXT_TOKENS
from kaged.models.turn import Model, ModelRequest, TurnFinished, UserMessage
from kaged.models.vendor import VendorModel

DEFAULT_ALIAS: Final = "default"
CHECK_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class _Made:
    """A model with what it was made from, so that a changed entry makes a new one."""

    entry: ModelEntry
    script: Stamp | None
    attempts: Attempts
    model: RetryingModel


class ModelCatalogue:
    """Gives models by alias. The aliases are the sections of `[models]`, as they are now.

    `scripted` is always there. `folder` is where relative script paths start; `script` is what
    `scripted` plays when `[models.scripted]` does not say.
    """

    def __init__(
        self,
        entries: Callable[[], Sections[ModelEntry]],
        *,
        folder: Path,
        clock: Clock,
        ids: Ids,
        script: Path | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._entries = entries
        self._folder = folder
        self._clock = clock
        self._ids = ids
        self._script = script
        self._sleep = sleep
        self._made: dict[str, _Made] = {}
        self._vendors: list[VendorModel] = []
        self._ask_provider: AskProvider | None = None
        self._window_of: WindowOf = lambda _project, _provider, _model: None

    def connect(self, ask_provider: AskProvider, window_of: WindowOf) -> None:
        """Take who asks the scripts of projects, for models that these provide."""
        self._ask_provider = ask_provider
        self._window_of = window_of

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every alias that can be asked for, `scripted` last unless it is configured."""
        good = tuple(self._entries().good)
        return good if SCRIPTED in good else (*good, SCRIPTED)

    def get(self, alias: str, project_id: str = "") -> Model:
        """Return the model behind an alias, with its fallbacks, as a project sees it.

        Raises:
            ModelError: `model_unknown`; there is none, or its section cannot be used.
            ModelError: `model_script_invalid`; the script that it plays cannot be used.
        """
        made = self._make(alias)
        others = [name for name in made.entry.fallbacks if name != alias]
        models = [_seen_from(one, project_id) for one in (made, *map(self._make, others))]
        return FallbackModel(models) if others else models[0]

    def rows(self) -> list[JsonObject]:
        """Describe every alias, those that cannot be used as well; without keys."""
        entries = self._entries()
        rows = [_row(alias, self._entry(alias)) for alias in self.aliases]
        for alias, problems in entries.broken.items():
            said: list[JsonValue] = [problem.as_json() for problem in problems]
            rows.append({"alias": alias, "model": None, "usable": False, "problems": said})
        return rows

    def identity(self, alias: str) -> ModelIdentity | None:
        """Return which model is behind an alias, and whose; None when there is none."""
        try:
            entry = self._entry(alias)
        except ModelError:
            return None
        provider, _, model = entry.model.partition(":")
        traits = tuple(one.value for one in entry.traits)
        return ModelIdentity(alias, model or provider, provider, traits)

    async def check(self, alias: str) -> JsonObject:
        """Ask a model one small question, once, and return how it went."""
        began_s = self._clock.monotonic_s()
        row: JsonObject = {"alias": alias, "ok": False}
        try:
            made = self._make(alias)
            row["model"] = made.entry.model
            if isinstance(made.attempts, ScriptedModel):
                # It was read and can be played; asked something odd, it would only say so.
                turns = made.attempts.turns
                return {**row, "ok": True, "says": f"a script of {turns} turns", "took_ms": 0}
            if isinstance(made.attempts, ProvidedModel):
                return {**row, "ok": True, "says": "a script of each project", "took_ms": 0}
            request = ModelRequest(
                [UserMessage("Answer with the single word: ready")],
                settings={"max_tokens": CHECK_TOKENS},
            )
            async with aclosing(made.attempts.attempt(request, 1)) as events:
                async for event in events:
                    if isinstance(event, TurnFinished):
                        turn = event.turn
                        row["ok"] = True
                        row["says"] = turn.message.text[:200]
                        row["input_tokens"] = turn.usage.input_tokens
                        row["output_tokens"] = turn.usage.output_tokens
                        row["cost_usd"] = turn.usage.cost_usd
            row["context_tokens"] = made.model.context_tokens
        except ModelError as error:
            row["error"] = {
                "code": error.code,
                "message": error.message,
                "fix": error.fix,
                "vendor_says": error.data.get("vendor_says"),
            }
        row["took_ms"] = round((self._clock.monotonic_s() - began_s) * 1000)
        return row

    async def close(self) -> None:
        """Close every connection to vendors."""
        vendors, self._vendors = self._vendors, []
        self._made.clear()
        for vendor in vendors:
            await vendor.close()

    def _make(self, alias: str) -> _Made:
        entry = self._entry(alias)
        path = self._script_path(alias, entry)
        stamp = None if path is None else _stamp(path)
        known = self._made.get(alias)
        read = path is None or (stamp is not None and known is not None and known.script == stamp)
        if known is not None and known.entry == entry and read:
            return known
        attempts = self._attempts(alias, entry, path)
        model = RetryingModel(
            attempts,
            RetryPolicy(retries=entry.retries),
            clock=self._clock,
            parallel=entry.parallel if isinstance(attempts, VendorModel) else None,
            sleep=self._sleep,
            price=attempts.priced if isinstance(attempts, VendorModel) else lambda usage: usage,
        )
        made = self._made[alias] = _Made(entry, stamp, attempts, model)
        return made

    def _attempts(self, alias: str, entry: ModelEntry, path: Path | None) -> Attempts:
        vendor_name = entry.model.partition(":")[0]
        if vendor_name == PROVIDED:
            return ProvidedModel(alias, entry, self._ask_provider, self._window_of)
        if vendor_name != SCRIPTED:
            vendor = VendorModel(alias, entry, clock=self._clock)
            self._vendors.append(vendor)
            return vendor
        script = (
            ModelScript.parse(BUILT_IN, "built-in script")
            if path is None
            else ModelScript.load(path)
        )
        return ScriptedModel(
            alias,
            script,
            ids=self._ids,
            name=entry.model,
            context_tokens=entry.context_window or SCRIPTED_CONTEXT_TOKENS,
            sleep=self._sleep,
        )

    def _entry(self, alias: str) -> ModelEntry:
        entries = self._entries()
        if alias in entries.broken:
            said = "; ".join(problem.message for problem in entries.broken[alias])
            raise ModelError(
                f"[models.{alias}] of local.toml cannot be used: {said}",
                code="model_unknown",
                fix="Correct the section, then run `kaged model check`.",
                alias=alias,
            )
        found = entries.good.get(alias)
        if found is None and alias == SCRIPTED:
            return ModelEntry(model=SCRIPTED)
        if found is None:
            raise ModelError(
                f"No model has the alias {alias!r}.",
                code="model_unknown",
                fix=(
                    f"Run `kaged model add {alias}`, or add [models.{alias}] to local.toml: "
                    'model = "vendor:name" and api_key or base_url. '
                    "`kaged model list` shows the aliases there are."
                ),
                alias=alias,
            )
        return found

    def _script_path(self, alias: str, entry: ModelEntry) -> Path | None:
        vendor, _, name = entry.model.partition(":")
        if vendor != SCRIPTED:
            return None
        if name:
            return self._folder / name
        return self._script if alias == SCRIPTED else None


def _seen_from(made: _Made, project_id: str) -> RetryingModel | ProjectModel:
    if isinstance(made.attempts, ProvidedModel):
        return ProjectModel(made.model, made.attempts, project_id)
    return made.model


def _row(alias: str, entry: ModelEntry) -> JsonObject:
    traits: list[JsonValue] = [trait.value for trait in entry.traits]
    fallbacks: list[JsonValue] = [*entry.fallbacks]
    return {
        "alias": alias,
        "model": entry.model,
        "usable": True,
        "base_url": entry.base_url,
        "has_key": entry.api_key is not None,
        "context_window": entry.context_window,
        "traits": traits,
        "fallbacks": fallbacks,
        "problems": [],
    }


def _stamp(path: Path) -> Stamp | None:
    try:
        return stamp_of(path.stat())
    except OSError:
        return None

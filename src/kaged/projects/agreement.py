"""`Standing`: what a project asks for, held against what the operator agreed to. Pure."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.config.ask_order import widening
from kaged.config.project_ask import unasked
from kaged.kernel.ask import Ask, AskedThing
from kaged.kernel.identity import Actor
from kaged.store import ProjectRecord

MAX_RECORDED: Final = 50
"""How many things of an ask an audit event names."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A yes that comes with a load: to whatever is asked, or only to what has this digest."""

    digest: str | None = None


@dataclass(frozen=True, slots=True)
class SettingEdit:
    """A setting of a plugin that the operator has just written through kaged itself."""

    agent: str
    plugin_key: str
    field: str

    @property
    def key(self) -> str:
        """The key of the thing in the project's ask."""
        return f"{self.agent}: plugin {self.plugin_key}"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a project asks for, what of that nobody agreed to, and the agreement there is.

    With anything in `widened`, all of the project is restricted.
    """

    ask: Ask
    agreed: Ask | None
    widened: tuple[AskedThing, ...]

    @classmethod
    def of(cls, ask: Ask, record: ProjectRecord | None) -> Standing:
        """Compare an ask with what is on record for the project, which may be nothing."""
        agreed = None if record is None else _agreed(record)
        if not widening(unasked(), ask):
            return cls(ask, agreed, ())
        return cls(ask, agreed, ask.things if agreed is None else widening(agreed, ask))

    @property
    def restricted(self) -> bool:
        """Whether the project is held to reading."""
        return bool(self.widened)

    @property
    def new(self) -> tuple[AskedThing, ...]:
        """What to mark as new; nothing where everything is."""
        return () if self.agreed is None else self.widened

    def require(self, digest: str | None) -> None:
        """Raise `project_ask_changed` unless what was shown is what is asked for now."""
        if digest is not None and digest != self.ask.digest:
            raise KagedError(
                "The project asks for something else than what you were shown. Nothing was agreed.",
                code="project_ask_changed",
                fix="`kaged project trust` shows what it asks for now.",
                digest=self.ask.digest,
            )

    def follows(self, edit: SettingEdit) -> bool:
        """Return whether an edit made through kaged is all that is new."""
        if self.agreed is None or [one.key for one in self.widened] != [edit.key]:
            return False
        before = self.agreed.by_key.get(edit.key)
        return before is not None and _without(before.value, edit.field) == _without(
            self.widened[0].value, edit.field
        )

    def recorded(self) -> list[JsonValue]:
        """Return what is new, for the audit trail."""
        return [one.sentence.words for one in self.widened[:MAX_RECORDED]]

    def as_json(self, record: ProjectRecord) -> JsonObject:
        """Return it for programs; `lines` are for people."""
        new = {one.key for one in self.widened}
        things: list[JsonValue] = [
            {**one.as_json(), "new": one.key in new} for one in self.ask.things
        ]
        at_ms = record.trusted_at_ms
        return {
            "digest": self.ask.digest,
            "things": things,
            "lines": [*self.ask.lines(self.new)],
            "agreed_digest": None if self.agreed is None else self.agreed.digest,
            "agreed_by": None if self.agreed is None else record.trusted_by,
            "agreed_at": None if self.agreed is None or at_ms is None else iso_utc(at_ms),
        }


def require_operator(who: Actor) -> None:
    """Raise `operator_only` for somebody whom a front end speaks for: they agree to nothing."""
    if who.is_person:
        raise KagedError(
            "Only the operator can agree to what a project asks for, or take that back.",
            code="operator_only",
            fix="Use `kaged project trust` as the user who runs the daemon.",
        )


def _agreed(record: ProjectRecord) -> Ask | None:
    if not record.trusted or record.agreed is None:
        return None
    try:
        return Ask.from_json(record.agreed)
    except ValueError:
        return None  # written by something else: nobody agreed to what cannot be read


def _without(value: JsonValue, field: str) -> JsonValue:
    if not isinstance(value, dict) or not isinstance(settings := value.get("settings"), dict):
        return value
    return {**value, "settings": {name: one for name, one in settings.items() if name != field}}

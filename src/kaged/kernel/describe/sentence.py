"""`Sentence`: one fact for people, with how much it matters and what can be done about it."""

from __future__ import annotations

from enum import StrEnum

from kaged.base.jsonvalue import JsonObject
from kaged.base.lazy_dataclass import dataclass


class SentenceSeverity(StrEnum):
    """How much a reader should stop at a sentence."""

    PLAIN = "plain"
    WARNING = "warning"
    DANGER = "danger"


_FLAGS = {
    SentenceSeverity.PLAIN: "",
    SentenceSeverity.WARNING: "!! ",
    SentenceSeverity.DANGER: "!! DANGEROUS: ",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One fact in words; `warning` says why it deserves a second look, `fix` what would change it.

    The words have no full stop and no subject, so that a surface can put them behind a name.
    """

    words: str
    severity: SentenceSeverity = SentenceSeverity.PLAIN
    warning: str = ""
    fix: str = ""

    @classmethod
    def dangerous_if(cls, words: str, warning: str) -> Sentence:
        """Return a sentence that is dangerous for this reason, or plain when there is none."""
        severity = SentenceSeverity.DANGER if warning else SentenceSeverity.PLAIN
        return cls(words, severity, warning)

    @property
    def dangerous(self) -> bool:
        """Whether a prompt should flag this as dangerous."""
        return self.severity is SentenceSeverity.DANGER

    @property
    def flag(self) -> str:
        """The warning as every prompt and page shows it; empty where there is none."""
        return f"{_FLAGS[self.severity]}{self.warning}" if self.warning else ""

    def lines(self, indent: str, flag_indent: str | None = None) -> list[str]:
        """Return the words and the flag, each on a line of its own."""
        found = [f"{indent}{self.words}"]
        if self.flag:
            found.append(f"{indent if flag_indent is None else flag_indent}{self.flag}")
        return found

    def as_json(self) -> JsonObject:
        """Return it for programs."""
        return {"words": self.words, "dangerous": self.dangerous, "warning": self.warning}

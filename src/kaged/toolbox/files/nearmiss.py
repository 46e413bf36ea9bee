"""`closest`: what in a file comes nearest to a text that is not in it, and why it did not match.

First the usual causes are tried one by one (line numbers pasted along, blanks, case, look-alike
characters), each by comparing normalised texts; then the most similar region is looked for. All of
it is bounded: a hint is a courtesy, not worth a second of work.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

MAX_BODY_BYTES: Final = 256 * 1024
MAX_OLD_CHARS: Final = 20_000
MAX_SHOWN_LINES: Final = 20
MAX_SHOWN_CHARS: Final = 300
MIN_SIMILARITY: Final = 0.6
_MAX_COMPARED_LINES: Final = 10_000
_MAX_WINDOWS: Final = 5
_MAX_TOKENS: Final = 300
_TOKENS: Final = re.compile(r"\w+|[^\w\s]")
_NUMBERS: Final = re.compile(r"^\s*\d+(?:: ?|\t|→|\|)", re.MULTILINE)
_LOOK_ALIKES: Final = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',  # quotes
        "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-",  # dashes
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": None, "\ufeff": None,  # blanks
        "\u2026": "...",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The region of a file that a text was probably meant to match."""

    start_line: int
    end_line: int
    similarity: float
    cause: str
    explanation: str
    text: str
    differs: JsonObject | None = None

    def as_json(self) -> JsonObject:
        """Return it as the `closest` of an error's detail."""
        answer: JsonObject = {
            "start_line": self.start_line,
            "end_line": self.end_line,
            "similarity": round(self.similarity, 3),
            "cause": self.cause,
            "explanation": self.explanation,
            "text": self.text,
        }
        if self.differs is not None:
            answer["first_difference"] = self.differs
        return answer


def closest(body: bytes, old: str) -> NearMiss | None:
    """Return the nearest region, or None when nothing is near or the texts are too large."""
    if len(body) > MAX_BODY_BYTES or len(old) > MAX_OLD_CHARS:
        return None
    text = body.decode("utf-8", "replace").replace("\r\n", "\n")
    wanted = old.replace("\r\n", "\n")
    for cause, explanation, alter_text, alter_old in _CAUSES:
        altered = alter_old(wanted)
        if not altered.strip():
            continue
        compared = alter_text(text)
        at = compared.find(altered)
        if at >= 0:
            first = compared.count("\n", 0, at) + 1
            last = first + altered.count("\n")
            return _miss(text, wanted, (first, last), 1.0 if cause == "line_numbers" else None,
                         cause, explanation)  # fmt: skip
    return _most_similar(text, wanted)


def _without_trailing(text: str) -> str:
    # Line by line: ten times faster than a pattern, and other threads get their turn in between.
    return "\n".join([line.rstrip() for line in text.split("\n")])


def _without_indent(text: str) -> str:
    return "\n".join([line.strip() for line in text.split("\n")])


def _one_blank(text: str) -> str:
    return "\n".join([" ".join(line.split()) for line in text.split("\n")])


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).translate(_LOOK_ALIKES)


def _loose(text: str) -> str:
    return _one_blank(_plain(text)).casefold()


_Alter = Callable[[str], str]
_CAUSES: Final[tuple[tuple[str, str, _Alter, _Alter], ...]] = (
    ("line_numbers", "your text has the line numbers of file.read in it; leave them out",
     str, partial(_NUMBERS.sub, "")),
    ("whitespace", "it differs in blanks at line ends only", _without_trailing, _without_trailing),
    ("whitespace", "it differs in indentation (tabs or spaces) only",
     _without_indent, _without_indent),
    ("whitespace", "it differs in blanks only", _one_blank, _one_blank),
    ("case", "it differs in upper and lower case only", str.casefold, str.casefold),
    ("characters", "it differs in look-alike characters only (quotes, dashes, accents, blanks)",
     _plain, _plain),
    ("several", "it differs in blanks, case and look-alike characters only", _loose, _loose),
)  # fmt: skip


def _most_similar(text: str, wanted: str) -> NearMiss | None:
    lines = text.split("\n")
    sought = wanted.strip("\n").split("\n")
    best: tuple[float, int] | None = None
    for start in _candidates(lines, sought):
        window = "\n".join(lines[start : start + len(sought)])
        score = _similarity(window, wanted)
        if best is None or score > best[0]:
            best = (score, start)
    if best is None or best[0] < MIN_SIMILARITY:
        return None
    score, start = best
    last = min(start + len(sought), len(lines))
    return _miss(text, wanted, (start + 1, last), score, "text", "the text itself differs")


def _candidates(lines: list[str], sought: list[str]) -> list[int]:
    """Return the lines where the text may begin, by the lines that both have in common."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(number)
    votes: Counter[int] = Counter()
    for index, line in enumerate(sought):
        stripped = line.strip()
        if len(stripped) < 3:
            continue
        for number in places.get(stripped, ())[:20]:
            votes[max(number - index, 0)] += 1
    if votes:
        return [start for start, _ in votes.most_common(_MAX_WINDOWS)]
    # Not one line in common: the lines that share the most with the longest one.
    anchor = max(range(len(sought)), key=lambda index: len(sought[index].strip()))
    key = _trigrams(sought[anchor])
    scored: list[tuple[int, int]] = []
    for number, line in enumerate(lines[:_MAX_COMPARED_LINES]):
        shared = len(key & _trigrams(line))
        if shared * 3 > len(key):
            scored.append((-shared, max(number - anchor, 0)))
    scored.sort()
    return [start for _, start in scored[:_MAX_WINDOWS]]


def _trigrams(line: str) -> set[str]:
    text = line.strip()[:MAX_SHOWN_CHARS]
    return {text[at : at + 3] for at in range(len(text) - 2)}


def _similarity(region: str, wanted: str) -> float:
    """Return the share of the wanted text's words and signs that the region has, in order."""
    there = _TOKENS.findall(region[:MAX_OLD_CHARS])[:_MAX_TOKENS]
    sought = _TOKENS.findall(wanted)[:_MAX_TOKENS]
    matcher = difflib.SequenceMatcher(None, there, sought, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / max(len(sought), 1)


def _miss(
    text: str,
    wanted: str,
    lines: tuple[int, int],
    similarity: float | None,
    cause: str,
    explanation: str,
) -> NearMiss:
    first, last = lines
    found = text.split("\n")[first - 1 : last]
    score = _similarity("\n".join(found), wanted) if similarity is None else similarity
    shown = "\n".join(line[:MAX_SHOWN_CHARS] for line in found[:MAX_SHOWN_LINES])
    differs = None if cause == "line_numbers" else _first_difference(found, wanted, first)
    return NearMiss(first, last, score, cause, explanation, shown, differs)


def _first_difference(found: list[str], wanted: str, first: int) -> JsonObject | None:
    sought = wanted.split("\n")
    for index, (there, yours) in enumerate(zip(found, sought, strict=False)):
        # The text may begin in the middle of its first line and end in the middle of its last.
        if index == 0 and there.endswith(yours):
            continue
        if index == len(sought) - 1 and there.startswith(yours):
            continue
        if there != yours:
            column = next(
                (at for at, (a, b) in enumerate(zip(there, yours, strict=False)) if a != b),
                min(len(there), len(yours)),
            )
            return {
                "line": first + index,
                "column": column + 1,
                "file_has": there[column : column + 20],
                "you_sent": yours[column : column + 20],
            }
    return None

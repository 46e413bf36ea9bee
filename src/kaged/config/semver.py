"""`Version` and `VersionRange`: semantic versions and the constraints that projects put on them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

MAX_VERSION_CHARS = 128
MAX_RANGE_CHARS = 256

_NUMBER = r"(?:0|[1-9]\d*)"
_PRE = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
SEMVER_PATTERN = (
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE}(?:\.{_PRE})*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
"""The grammar of semver.org, for whole texts."""

_VERSION = re.compile(SEMVER_PATTERN, re.ASCII)
_PARTIAL = re.compile(
    rf"(?P<op>\^|~|>=|<=|>|<|=)?\s*v?(?P<major>{_NUMBER}|[xX*])"
    rf"(?:\.(?P<minor>{_NUMBER}|[xX*])(?:\.(?P<patch>{_NUMBER}|[xX*])"
    rf"(?:-(?P<pre>{_PRE}(?:\.{_PRE})*))?(?:\+[0-9a-zA-Z.-]+)?)?)?",
    re.ASCII,
)
_SPACED_OPERATOR = re.compile(r"(\^|~|>=|<=|>|<|=)\s+")


class VersionInvalid(KagedError):
    """The text is no semantic version, or no range of them."""

    code = "version_invalid"


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. Ordered by precedence; build metadata does not count."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write it without build metadata."""
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{'.'.join(self.pre)}" if self.pre else core

    def __lt__(self, other: Version) -> bool:
        """Return whether this comes before `other`."""
        return self._order() < other._order()

    def _order(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        # Numbers come before words, and a version with a pre-release before the one without.
        pre = tuple(
            (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in self.pre
        )
        return self.major, self.minor, self.patch, not self.pre, pre


@dataclass(frozen=True, slots=True)
class _Span:
    """From a lower bound up to, but without, an upper bound (or with it, if `closed`)."""

    low: Version
    high: Version | None
    low_open: bool = False
    high_closed: bool = False

    def holds(self, version: Version) -> bool:
        if version < self.low or (self.low_open and version == self.low):
            return False
        return (
            self.high is None or version < self.high or (self.high_closed and version == self.high)
        )


@dataclass(frozen=True, slots=True)
class VersionRange:
    """A constraint such as `1.4.2`, `^1.2`, `~1.2.3`, `1.x`, `>=1.0 <2` or `*`.

    Parts separated by blanks must all hold. Pre-releases match only if a part names a pre-release
    of the same three numbers, as in npm.
    """

    text: str
    spans: tuple[_Span, ...]

    @property
    def exact(self) -> Version | None:
        """The one version asked for, if the constraint is a plain version."""
        return parse_version(self.text) if _VERSION.fullmatch(self.text) else None

    def matches(self, version: Version) -> bool:
        """Return whether this version is wanted."""
        if not all(span.holds(version) for span in self.spans):
            return False
        if not version.pre:
            return True
        numbers = (version.major, version.minor, version.patch)
        named = [bound for span in self.spans for bound in (span.low, span.high) if bound]
        return any(
            bound.pre and (bound.major, bound.minor, bound.patch) == numbers for bound in named
        )

    def highest(self, versions: Iterable[Version]) -> Version | None:
        """Return the highest version that is wanted, if any is."""
        return max((version for version in versions if self.matches(version)), default=None)


def parse_version(text: str) -> Version:
    """Read a semantic version. Raises VersionInvalid for anything else, `1.4` and `v1.0.0` too."""
    if len(text) > MAX_VERSION_CHARS or not _VERSION.fullmatch(text):
        raise VersionInvalid(
            "is no semantic version", fix="write three numbers, for example 1.4.2, in quotes"
        )
    core, _, pre = text.partition("+")[0].partition("-")
    major, minor, patch = (int(part) for part in core.split("."))
    return Version(major, minor, patch, tuple(pre.split(".")) if pre else ())


def parse_range(text: str) -> VersionRange:
    """Read a version constraint. Raises VersionInvalid."""
    if len(text) > MAX_RANGE_CHARS:
        raise VersionInvalid("is too long for a version constraint")
    parts = _SPACED_OPERATOR.sub(r"\1", text.strip()).split()
    if not parts:
        raise VersionInvalid("is an empty version constraint", fix="write * for any version")
    return VersionRange(text.strip(), tuple(_parse_part(part) for part in parts))


def _parse_part(part: str) -> _Span:
    found = _PARTIAL.fullmatch(part)
    if found is None:
        raise VersionInvalid(
            "is no version constraint",
            fix="write for example 1.4.2, ^1.2, ~1.2.3, 1.x, '>=1.0 <2' or *",
        )
    numbers: list[int] = []
    for name in ("major", "minor", "patch"):
        number = found[name]
        if number is None or number in "xX*":
            break
        numbers.append(int(number))
    if not numbers and found["op"]:
        raise VersionInvalid("compares with any version", fix="write * alone, or name a version")
    pre = tuple(found["pre"].split(".")) if found["pre"] and len(numbers) == 3 else ()
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    low = Version(major, minor, patch, pre)
    return _span_for(found["op"] or "=", numbers, low)


def _span_for(operator: str, numbers: list[int], low: Version) -> _Span:
    after = _bump(numbers, len(numbers) - 1) if numbers else None
    match operator:
        case "^":
            # The first number that is not zero may not change.
            place = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
            span = _Span(low, _bump(numbers, place))
        case "~":
            span = _Span(low, _bump(numbers, min(1, len(numbers) - 1)))
        case ">=":
            span = _Span(low, None)
        case ">" if len(numbers) == 3:
            span = _Span(low, None, low_open=True)
        case ">":
            span = _Span(after or low, None)
        case "<":
            span = _Span(Version(0, 0, 0, ("0",)), low)
        case "<=" if len(numbers) == 3:
            span = _Span(Version(0, 0, 0, ("0",)), low, high_closed=True)
        case "<=":
            span = _Span(Version(0, 0, 0, ("0",)), after)
        case _ if len(numbers) == 3:
            span = _Span(low, low, high_closed=True)
        case _:
            span = _Span(low, after)
    return span


def _bump(numbers: list[int], place: int) -> Version:
    kept = [*numbers[:place], numbers[place] + 1]
    major, minor, patch = [*kept, 0, 0][:3]
    return Version(major, minor, patch)

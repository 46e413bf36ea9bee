"""`Decision`: the answer to one question of authority, as a value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass

DENIED = "capability_denied"
_P = ParamSpec("_P")


class CapabilityDenied(KagedError):
    """The caller may not do this; `data.rule` names the rule that spoke."""

    code = DENIED


class SeccompInsufficient(CapabilityDenied):
    """The caller's cage runs under another system-call filter than the tool needs."""

    code = "seccomp_insufficient"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one question of authority, with a reason that a person can read.

    `rule` names the rule that spoke (`tool.fs`, `net.host`), `detail` says what was missing in the
    vocabulary's own words, `remedy` the change that would allow it (empty when allowed, or when
    nothing would). `code` is the public error code of a refusal. `fault` is empty unless the check
    itself broke; it is for the host's log and is never shown to the caller.
    """

    allowed: bool
    rule: str
    detail: str = ""
    remedy: str = ""
    code: str = DENIED
    fault: str = ""

    @classmethod
    def allow(cls, rule: str, detail: str = "") -> Decision:
        """Return a permission, by this rule."""
        return cls(allowed=True, rule=rule, detail=detail)

    @classmethod
    def deny(cls, rule: str, detail: str, remedy: str = "", code: str = DENIED) -> Decision:
        """Return a denial, with what was missing and what would change the answer."""
        return cls(allowed=False, rule=rule, detail=detail, remedy=remedy, code=code)


def fail_closed(rule: str) -> Callable[[Callable[_P, Decision]], Callable[_P, Decision]]:
    """Make a check that breaks say no, by `rule`, instead of raising.

    What broke is kept in `Decision.fault`, so that the host can log it and the caller learns
    nothing from it.
    """

    def wrap(check: Callable[_P, Decision]) -> Callable[_P, Decision]:
        @functools.wraps(check)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> Decision:
            try:
                return check(*args, **kwargs)
            # Boundary: whatever goes wrong inside a check is a denial, never a way past it.
            except Exception as error:  # noqa: BLE001 - fail closed on anything at all
                return broken(rule, error)

        return guarded

    return wrap


def broken(rule: str, error: Exception) -> Decision:
    """Return the denial that stands for a check which raised `error`."""
    fault = f"{type(error).__name__}: {error}"
    return Decision(allowed=False, rule=rule, detail="the permission check failed", fault=fault)

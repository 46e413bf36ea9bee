"""Errors are told apart by their code: how tests say which one they expect."""

from __future__ import annotations

from typing import TypeGuard, TypeVar, overload

import pytest

from kaged.base import KagedError

_Error = TypeVar("_Error", bound=KagedError)


@overload
def raises_code(
    code: str, kind: type[_Error], *, match: str | None = None
) -> pytest.RaisesExc[_Error]: ...
@overload
def raises_code(code: str, *, match: str | None = None) -> pytest.RaisesExc[KagedError]: ...
def raises_code(
    code: str, kind: type[KagedError] = KagedError, *, match: str | None = None
) -> pytest.RaisesExc[KagedError]:
    """Expect an error of that kind with exactly this code, as `pytest.raises` does for classes."""
    return pytest.RaisesExc(kind, match=match, check=lambda error: error.code == code)


def has_code(error: object, code: str) -> TypeGuard[KagedError]:
    """Return whether this is an error of ours with the code."""
    return isinstance(error, KagedError) and error.code == code

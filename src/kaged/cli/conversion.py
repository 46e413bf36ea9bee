"""`Command` and `Group`: as typer has them, but a text is a text without loading pydantic.

Typer converts every argument with a validator of pydantic, also one that nobody gave. Loading
pydantic and building the validators takes longer than most commands do. So what is plain is taken
as it is: a default, a text, a path, a number. Whatever is not plainly right goes typer's way, and
so do all messages about what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

_NOT_PLAIN: Final = object()


class Command(TyperCommand):
    """A command whose plain arguments are converted here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        _convert_here(self.get_params(ctx))
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands whose plain options are converted here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options in front of the command's name."""
        _convert_here(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _convert_here(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        convert: Callable[[], Any] | None = getattr(parameter, "get_runtime_param", None)
        if convert is not None:  # otherwise a typer that works without pydantic
            parameter.get_runtime_param = _Conversion(convert)


class _Conversion:
    """Stands for typer's conversion of one parameter, and gets that one when it is needed."""

    def __init__(self, full: Callable[[], Any]) -> None:
        self._full = full

    def __call__(self) -> _Conversion:
        return self

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Convert what came from the command line, or the default."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        about = param.type_descriptor
        if about.parameter_info.parser is None:
            plain = _plain(value, about.annotation, about.parameter_info)
            if plain is not _NOT_PLAIN:
                return plain
        return self._full().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, annotation: Any, about: Any) -> Any:
    """Return the converted value; `_NOT_PLAIN` for what typer should look at."""
    if annotation == list[str]:
        texts = value if isinstance(value, (list, tuple)) else [value]
        return list(texts) if all(isinstance(one, str) for one in texts) else _NOT_PLAIN
    if annotation is str:
        return value if isinstance(value, str) else _NOT_PLAIN
    if annotation is Path and isinstance(value, str):
        return Path(value) if _is_ordinary_path(value, about) else _NOT_PLAIN
    if annotation is int and isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value) if len(value) < 10 else None
        return number if number is not None and _in_range(number, about) else _NOT_PLAIN
    if annotation is int and type(value) is int:
        return value if _in_range(value, about) else _NOT_PLAIN
    return _NOT_PLAIN


def _is_ordinary_path(value: str, about: Any) -> bool:
    """Return whether typer would take a path as it is: nothing there, or something readable."""
    asked = about.exists or about.writable or about.resolve_path or about.allow_dash
    if asked or about.path_type is not None or not (about.file_okay and about.dir_okay):
        return False
    return not about.readable or os.access(value, os.R_OK) or not os.path.lexists(value)


def _in_range(number: int, about: Any) -> bool:
    return (about.min is None or number >= about.min) and (about.max is None or number <= about.max)

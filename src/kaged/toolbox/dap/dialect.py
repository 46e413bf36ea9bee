"""`Dialect`: what is different between one JavaScript engine's inspector and another's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kaged.base import JsonObject, JsonValue

Ask: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Asks the engine: a method and its parameters."""


@dataclass(frozen=True, slots=True)
class ScopeView:
    """A scope of a frame: `hint` is local, closure or global.

    `unlisted` says that the engine does not list what is in it, as Bun's does for modules.
    """

    name: str
    hint: str
    object_id: str
    unlisted: bool = False


class Dialect(Protocol):
    """What is different between one engine's inspector and another's."""

    @property
    def translates(self) -> bool:
        """Whether the engine runs a translation of every file, with other lines."""
        ...

    def flags(self) -> list[str]:
        """Return the runtime's options that open its inspector and make it wait."""
        ...

    async def prepare(self, ask: Ask) -> None:
        """Switch on what is needed, before the program runs."""
        ...

    async def go(self, ask: Ask, *, stop: bool) -> None:
        """Let the program begin, to stop at its first statement or not."""
        ...

    def url(self, path: str) -> str:
        """Return a file's URL as the engine writes it."""
        ...

    def path(self, url: str) -> str | None:
        """Return the file that the engine names; None for what is no file."""
        ...

    def breakpoint(self, url: str, line: int, column: int | None, condition: str) -> JsonObject:
        """Write the parameters of `Debugger.setBreakpointByUrl`."""
        ...

    def reason(self, paused: JsonObject) -> str | None:
        """Return why the engine stopped: entry, breakpoint, exception; None when not known."""
        ...

    def hits(self, paused: JsonObject) -> list[JsonValue]:
        """Return the breakpoints that a stop is about."""
        ...

    def scopes(self, frame: JsonObject) -> list[ScopeView]:
        """List a frame's scopes, innermost first."""
        ...

    async def properties(self, ask: Ask, object_id: str) -> JsonValue:
        """List a value's own properties."""
        ...

    def thrown(self, result: JsonObject) -> str | None:
        """Return what an evaluation threw."""
        ...

    def ends(self, method: str, params: JsonObject) -> bool:
        """Return whether an event means that the program is over and waits for us to leave."""
        ...

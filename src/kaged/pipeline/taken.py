"""`Taken`: what the host took of a plugin's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from kaged.pipeline.merge import DiscardedChange
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.violations import PluginViolation


@final
class Taken:
    """What was taken of an answer, in types and objects of the host's own.

    `extensions` is None when nothing was accepted, `payload` when it was not changed. An object
    holds only what differs from a plain allow.
    """

    denied = False
    payload: Any = None
    extensions: Extensions | None = None
    violation: PluginViolation | None = None
    metadata: dict[str, Any] | None = None
    denial_metadata: Any = None
    retry_delay_ms = 0
    discarded: tuple[DiscardedChange, ...] = ()


def whole(found: Taken | Extensions) -> Taken:
    """Give what was taken in full; merged extensions alone stand for themselves until then."""
    if isinstance(found, Taken):
        return found
    taken = Taken()
    taken.extensions = found
    return taken


__all__ = ["Taken", "whole"]

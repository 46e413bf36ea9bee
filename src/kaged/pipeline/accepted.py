"""`Accepted`: the part of a policy plugin's answer that the host accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from kaged.pipeline.merge import DiscardedChange
    from kaged.pipeline.slots import Extensions
    from kaged.pipeline.violations import PluginViolation


@final
class Accepted:
    """The accepted part of an answer, in types and objects of the host's own.

    `extensions` is None when no change was accepted, `payload` when it was not changed.
    """

    __slots__ = (
        "denial_metadata",
        "denied",
        "discarded",
        "extensions",
        "metadata",
        "payload",
        "retry_delay_ms",
        "violation",
    )

    def __init__(self) -> None:
        self.denied = False
        self.violation: PluginViolation | None = None
        self.denial_metadata: Any = None
        self.extensions: Extensions | None = None
        self.discarded: tuple[DiscardedChange, ...] = ()
        self.payload: Any = None
        self.metadata: dict[str, Any] | None = None
        self.retry_delay_ms = 0

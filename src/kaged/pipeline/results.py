"""What a hook returns: `PluginResult`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from kaged.pipeline.records import PluginViolation
from kaged.pipeline.shapes import PlainRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.pipeline.errors import PluginErrorModel
    from kaged.pipeline.records import ControlExecutionRecord
    from kaged.pipeline.slots import Extensions

T = TypeVar("T")

MAX_RETRY_DELAY_MS = 24 * 60 * 60 * 1000


class _FreshDict:
    """Gives each result a dict of its own when it is first asked for one."""

    def __get__(self, result: PluginResult[Any] | None, owner: type) -> dict[str, Any]:
        if result is None:
            return {}
        own: dict[str, Any] = {}
        result.__dict__["metadata"] = own
        return own


class PluginResult(PlainRecord, Generic[T]):
    """The answer of one hook, and of a whole chain.

    `continue_processing` False denies (in modes that may). A changed payload or changed extensions
    go into `modified_payload` and `modified_extensions`; the host takes of them what the plugin is
    allowed to change. `executions` and `background_tasks` are filled by the host only.

    An object holds only what differs from the defaults: most results are a plain allow.
    """

    shape: ClassVar[tuple[str, ...]] = (
        "continue_processing",
        "modified_payload",
        "modified_extensions",
        "violation",
        "metadata",
        "denial_metadata",
        "http_headers",
        "retry_delay_ms",
        "executions",
    )

    continue_processing: bool = True
    modified_payload: T | None = None
    modified_extensions: Extensions | None = None
    violation: PluginViolation | None = None
    metadata: dict[str, Any] = _FreshDict()  # pyright: ignore[reportAssignmentType] - reads as a dict
    denial_metadata: dict[str, Any] | None = None
    background_tasks: list[asyncio.Task[PluginErrorModel | None]] | None = None
    http_headers: dict[str, str] | None = None
    retry_delay_ms: int = 0
    _records: Callable[[], list[ControlExecutionRecord]] | None = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _item: object) -> type:
            # A generic alias would make every construction three times as slow.
            return cls

    def __init__(
        self,
        continue_processing: bool = True,
        modified_payload: T | None = None,
        modified_extensions: Extensions | None = None,
        violation: PluginViolation | None = None,
        metadata: dict[str, Any] | None = None,
        denial_metadata: dict[str, Any] | None = None,
        background_tasks: list[asyncio.Task[PluginErrorModel | None]] | None = None,
        http_headers: dict[str, str] | None = None,
        retry_delay_ms: int = 0,
    ) -> None:
        if continue_processing is not True:
            self.continue_processing = continue_processing
        if modified_payload is not None:
            self.modified_payload = modified_payload
        if modified_extensions is not None:
            self.modified_extensions = modified_extensions
        if violation is not None:
            self.violation = violation
        if metadata is not None:
            self.metadata = metadata
        if denial_metadata is not None:
            self.denial_metadata = denial_metadata
        if background_tasks is not None:
            self.background_tasks = background_tasks
        if http_headers is not None:
            self.http_headers = http_headers
        if retry_delay_ms != 0:
            self.retry_delay_ms = retry_delay_ms

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        said = values.get("violation")
        if said is not None:
            values["violation"] = PluginViolation.model_validate(said)
        slots = values.get("modified_extensions")
        if isinstance(slots, dict):
            # Twelve models that a result without extensions does not need.
            from kaged.pipeline.slots import Extensions  # noqa: PLC0415 - see above

            values["modified_extensions"] = Extensions.model_validate(slots)
        return values

    @property
    def executions(self) -> list[ControlExecutionRecord]:
        """Return one record per plugin that ran; made when read."""
        return [] if self._records is None else self._records()

    def keep_records(self, make: Callable[[], list[ControlExecutionRecord]]) -> None:
        """Let the host put its records behind `executions`."""
        self._records = make

    @property
    def suppressed_denials(self) -> list[ControlExecutionRecord]:
        """Return the records of denials from modes that cannot deny."""
        return [record for record in self.executions if record.suppressed]

    async def wait_for_background_tasks(self) -> list[PluginErrorModel]:
        """Wait for the fire-and-forget plugins of this call and return their errors."""
        if not self.background_tasks:
            return []
        ended = await asyncio.gather(*self.background_tasks, return_exceptions=True)
        return [
            error for error in ended if error is not None and not isinstance(error, BaseException)
        ]

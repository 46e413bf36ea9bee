"""Pipeline plugins that tests load by their dotted path."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, ClassVar

from kaged.pipeline import (
    Extensions,
    HttpExtension,
    Plugin,
    PluginConfig,
    PluginResult,
    PluginViolation,
)
from kaged.pipeline.payloads.calls import HttpAuthCheckPermissionResultPayload


class Tagger(Plugin):
    """Leaves its name in the metadata."""

    async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(metadata={"tagged": self.name})


class ByKeyword(Plugin):
    """Takes extensions by keyword."""

    async def tool_pre_invoke(
        self, payload: Any, context: Any, *, extensions: Extensions
    ) -> PluginResult[Any]:
        assert isinstance(extensions, Extensions)
        return PluginResult(metadata={"tagged": self.name})


class RefusesToStart(Plugin):
    """Raises in its constructor."""

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        raise RuntimeError("I will not")

    async def tool_post_invoke(self, payload: Any, context: Any) -> None: ...

    async def tool_pre_invoke(self, payload: Any, context: Any) -> None: ...


class NotAPlugin:
    """A class of another family."""


class Meets(Plugin):
    """Counts how many of its kind run at the same time."""

    running: ClassVar[int] = 0
    most: ClassVar[int] = 0

    async def tool_pre_invoke(self, payload: Any, context: Any) -> None:
        Meets.running += 1
        Meets.most = max(Meets.most, Meets.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        Meets.running -= 1


class Grants(Plugin):
    """Decides about a permission."""

    async def http_auth_check_permission(self, payload: Any, context: Any) -> PluginResult[Any]:
        decided = HttpAuthCheckPermissionResultPayload(granted=True, reason="mine")
        return PluginResult(modified_payload=decided)


class Ends(Plugin):
    """Ends every call about a permission."""

    async def http_auth_check_permission(self, payload: Any, context: Any) -> PluginResult[Any]:
        return PluginResult(continue_processing=False)


class Everything(Plugin):
    """Does what its configuration says."""

    async def tool_pre_invoke(
        self, payload: Any, context: Any, extensions: Extensions | None = None
    ) -> PluginResult[Any] | None:
        act = (self.config.config or {}).get("act", "nothing")
        context.set_state("calls", context.get_state("calls", 0) + 1)
        context.global_context.state["seen"] = self.name
        return await getattr(self, f"_{act}")(payload, extensions or Extensions())

    async def _nothing(self, payload: Any, ext: Extensions) -> None:
        return None

    async def _edit(self, payload: Any, ext: Extensions) -> PluginResult[Any]:
        headers = {} if ext.http is None else dict(ext.http.headers)
        return PluginResult(
            modified_payload=payload.model_copy(update={"args": {**payload.args, "n": [1]}}),
            modified_extensions=ext.model_copy(
                update={
                    "http": HttpExtension(headers={**headers, "x-new": "1"}),
                    "custom": {"mine": {"deep": [1, None]}},
                }
            ),
            metadata={"edited": True},
            retry_delay_ms=7,
        )

    async def _deny(self, payload: Any, ext: Extensions) -> PluginResult[Any]:
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation("no", "really", "nope", {"k": [1]}, http_status_code=403),
            denial_metadata={"hits": 2},
        )

    async def _raise(self, payload: Any, ext: Extensions) -> None:
        raise ValueError("boom")

    async def _foreign(self, payload: Any, ext: Extensions) -> Any:
        return {"continue_processing": False}

    async def _hang(self, payload: Any, ext: Extensions) -> None:
        await asyncio.Event().wait()

    async def _block(self, payload: Any, ext: Extensions) -> None:
        time.sleep(3600)

    async def _print(self, payload: Any, ext: Extensions) -> None:
        print("hello from a plugin")  # noqa: T201 - plugins print
        print('{"jsonrpc": "2.0", "id": 1, "result": {}}', flush=True)  # noqa: T201 - and lie

    async def _nonsense(self, payload: Any, ext: Extensions) -> None:
        for fd in range(3, 16):
            try:
                os.write(fd, b"this is not a message\n")
            except OSError:
                continue

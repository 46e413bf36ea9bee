"""Policies for the tests of the runner: each does one thing."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from kaged.pipeline import (
    Extensions,
    Plugin,
    PluginContext,
    PluginResult,
    PluginViolation,
)

ORDER: contextvars.ContextVar[str] = contextvars.ContextVar("order", default="host")


class Allow(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult()


class Both(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> None: ...
    async def tool_post_invoke(self, payload: Any, context: PluginContext) -> None: ...


class Deny(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult(
            continue_processing=False,
            violation=PluginViolation("no", "really no", "nope", http_status_code=403),
            modified_payload=payload.model_copy(update={"name": "denied-edit"}),
            metadata={"by": self.name},
        )


class Boom(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        raise ValueError("boom")


class Hang(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes this")


class AddToOrder(Plugin):
    """Appends its name to custom.order."""

    async def tool_pre_invoke(
        self, payload: Any, context: PluginContext, extensions: Extensions
    ) -> PluginResult[Any]:
        custom = dict(extensions.custom or {})
        custom["order"] = [*custom.get("order", []), self.name]
        return PluginResult(modified_extensions=extensions.model_copy(update={"custom": custom}))


class AddArgument(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: PluginContext) -> PluginResult[Any]:
        return PluginResult(
            modified_payload=payload.model_copy(
                update={"args": {**payload.args, self.name: len(payload.args)}}
            ),
            metadata={"last": self.name, "_decision_plugin": "forged"},
        )


def seen_by(*views: Any) -> type[Plugin]:
    """Make a plugin that keeps the views it gets."""

    class Looker(Plugin):
        async def tool_pre_invoke(
            self, payload: Any, context: PluginContext, extensions: Extensions
        ) -> None:
            views[0].append(extensions)

    return Looker

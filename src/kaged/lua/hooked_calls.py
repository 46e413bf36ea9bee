"""`ScriptPolicies`: the extension pipeline around what scripts reach outside themselves.

Policies know a call as the tool that scripts call: `kage.exec`, `kage.http`, `kage.fs.read`.
What comes from the web was written by somebody outside, so it is labelled before it is asked for,
unless the operator says that nobody outside writes there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.lua.errors import ScriptCallRefused
from kaged.tools.errors import PipelineRefused, ReportedError
from kaged.tools.policy_answer import policy_answer
from kaged.tools.session_labels import UNTRUSTED

if TYPE_CHECKING:
    from kaged.base import Clock, Ids
    from kaged.pipeline.hooked_call import HookedCall
    from kaged.pipeline.pipeline import Pipeline
    from kaged.pipeline.slots import ToolMetadata
    from kaged.tools.session_labels import SessionLabels

_PRE, _POST = "tool_pre_invoke", "tool_post_invoke"

# Whether a call changes something, and whether it may connect elsewhere. Programs have no network.
_REACH: Final = {
    "kage.exec": (True, False),
    "kage.env": (False, False),
    "kage.fs.read": (False, False),
    "kage.fs.write": (True, False),
    "kage.http": (True, True),
    "kage.http.post_stream": (True, True),
}
_WEB: Final = frozenset({"kage.http", "kage.http.post_stream"})
_FROM_OUTSIDE: Final = frozenset({UNTRUSTED})
PASSING: Final = frozenset(_REACH)
"""The calls of scripts that pass the policies."""


class ScriptPolicies:
    """Takes the calls of one project's scripts through the pipeline in force."""

    def __init__(
        self,
        pipeline: Callable[[], Pipeline | None],
        labels: SessionLabels,
        project_id: str,
        clock: Clock,
        ids: Ids,
        trusts: Callable[[object], bool],
    ) -> None:
        self._trusts = trusts
        self._pipeline = pipeline
        self._labels = labels
        self._project_id = project_id
        self._clock = clock
        self._ids = ids

    async def around(
        self,
        script: str,
        session: Callable[[], Awaitable[str | None]],
        name: str,
        params: JsonObject,
        run: Callable[[JsonObject], Awaitable[JsonValue] | None],
    ) -> JsonValue:
        """Make a call with the policies on both sides of it.

        Raises:
            ScriptCallRefused: a policy said no, or failed.
        """
        pipeline = self._pipeline()
        if pipeline is None or not (pipeline.has_hooks_for(_PRE) or pipeline.has_hooks_for(_POST)):
            if self._from_outside(name, params):
                await self._label(await session(), script)
            answer = run(params)
            return None if answer is None else await answer
        session_id = await session()
        outside = self._from_outside(name, params)
        hooked, described = await self._opened(pipeline, script, session_id, name, outside)
        try:
            asked = await policy_answer(hooked.before_tool(name, params, described))
            if asked.changed:
                params = _arguments(asked.payload, name)
            if self._from_outside(name, params):  # as a policy has left them
                await self._label(session_id, script)
                hooked.label(_FROM_OUTSIDE)
            answer = run(params)
            result = None if answer is None else await answer
            given = await policy_answer(hooked.after_tool(name, result, described))
        except (PipelineRefused, ReportedError) as error:
            raise ScriptCallRefused(f"{name}: {error.message}") from error
        return _json(given.payload.result) if given.changed else result

    def _from_outside(self, name: str, params: JsonObject) -> bool:
        return name in _WEB and not self._trusts(params.get("url"))

    async def _label(self, session_id: str | None, script: str) -> None:
        """Put on a session what is known of the web, before any of it arrives."""
        if session_id is not None:
            await self._labels.add(session_id, _FROM_OUTSIDE, source=_owner(script))

    async def _opened(
        self, pipeline: Pipeline, script: str, session_id: str | None, name: str, outside: bool
    ) -> tuple[HookedCall, ToolMetadata]:
        # Not at the top: a daemon without a pipeline starts without its machinery.
        from kaged.pipeline.hooked_call import HookedCall  # noqa: PLC0415 - see the line above
        from kaged.pipeline.origin import CallOrigin, data_policy  # noqa: PLC0415 - as above
        from kaged.pipeline.policies.untrusted import (  # noqa: PLC0415 - as above
            CHANGES_ANNOTATION,
        )
        from kaged.pipeline.policies.ways_out import NET_ANNOTATION  # noqa: PLC0415 - as above
        from kaged.pipeline.slots import (  # noqa: PLC0415 - as above
            ObjectSecurityProfile,
            SubjectExtension,
            SubjectType,
            ToolMetadata,
        )

        owner = _owner(script)
        known = {"project_id": self._project_id, "session_id": session_id}
        origin = CallOrigin(
            request_id=self._ids.tagged("req"),
            at_ms=self._clock.now_ms(),
            subject=SubjectExtension(id=owner, type=SubjectType.SERVICE),
            labels=frozenset() if session_id is None else await self._labels.of(session_id),
            source="script",
            scope=owner,
            properties={key: text for key, text in known.items() if text is not None},
            objects={
                name: ObjectSecurityProfile(trust_domain=owner, data_scope=[self._project_id])
            },
            data=data_policy(name, _FROM_OUTSIDE if outside else frozenset()),
        )
        keep = None if session_id is None else self._labels.keeper(session_id, source=owner)
        changes, reaches_net = _REACH[name]
        described = ToolMetadata(
            name=name,
            server_id=owner,
            namespace="kage",
            annotations={NET_ANNOTATION: reaches_net, CHANGES_ANNOTATION: changes},
        )
        return HookedCall(pipeline, origin, keep), described


def _owner(script: str) -> str:
    return f"lua:{script}"


def _arguments(payload: Any, name: str) -> JsonObject:
    args = _json(payload.args or {})
    if str(payload.name) != name or not isinstance(args, dict):
        raise ScriptCallRefused(f"{name}: a policy redirected this call, which is not possible")
    return args


def _json(value: Any) -> JsonValue:
    from kaged.pipeline.remote import to_json  # noqa: PLC0415 - only with a pipeline

    return to_json(value)

"""A hook call and its answer as JSON, for plugins that run outside our process.

The plugin gets the already filtered view and answers with the slots that it changed; the host puts
those on top of the same view and merges with the same function as for everybody. So the wire adds
no authority, and takes none away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from kaged.base import JsonObject, KagedError
from kaged.base.foreign import describe_error, type_name
from kaged.pipeline.contexts import GlobalContext, PluginContext, UserContext
from kaged.pipeline.errors import PluginViolationError
from kaged.pipeline.payloads.base import HOST, StructuredData
from kaged.pipeline.payloads.registry import HookKind, parse_result
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.shapes import plain
from kaged.pipeline.slots import Extensions

MAX_STATE_KEYS = 1024
_FOREIGN = "pipeline_foreign_result"


class NotSendable(KagedError):
    """A call, or an answer, holds something that has no JSON form."""

    code = "plugin_call_not_sendable"


# -- host side -----------------------------------------------------------------------------------


def encode_call(
    hook: str, payload: Any, context: PluginContext, view: Extensions | None
) -> JsonObject:
    """Write a call down. Raises NotSendable."""
    shared = context.global_context
    return {
        "hook_type": hook,
        "payload": to_json(payload),
        "context": {
            "state": to_json(context.state),
            "metadata": to_json(context.metadata),
            "global_context": to_json(shared.model_dump()),
        },
        "extensions": None if view is None else to_json(view),
    }


def decode_answer(
    answer: object, kind: HookKind | None, context: PluginContext, view: Extensions | None
) -> PluginResult[Any]:
    """Read an answer, take over the plugin's memory, and return its result.

    Raises:
        KagedError: `plugin_raised`; the hook raised.
        PluginViolationError: the hook raised this.
        KagedError: `plugin_answer_invalid`; it is no answer.
    """
    if not isinstance(answer, dict):
        raise _invalid("the plugin's answer is not a JSON object")
    _take_memory(answer.get("context"), context)
    raised = answer.get("error")
    if raised is not None:
        raise _error(raised)
    data = answer.get("result")
    if not isinstance(data, dict):
        raise _invalid("the plugin's answer has no result")
    try:
        return parse_result(kind, data, _changed(data, view))
    except ValueError as error:
        raise _invalid(f"the plugin's result does not fit: {error}") from error


def _changed(data: dict[str, Any], view: Extensions | None) -> Extensions | None:
    """Put the slots that the plugin changed on top of what it was shown."""
    slots = data.get("modified_extensions")
    unsendable = data.get("unsendable_slots") or ()
    if slots is None and not unsendable:
        return None
    updates: dict[str, Any] = {name: object() for name in unsendable if isinstance(name, str)}
    if slots is not None:
        if not isinstance(slots, dict):
            raise _invalid("modified_extensions is not a JSON object")
        updates |= {name: _slot(name, value) for name, value in slots.items()}
    return (Extensions() if view is None else view).model_copy(update=updates)


def _slot(name: str, value: Any) -> Any:
    try:
        return getattr(Extensions.model_validate({name: value}), name, None)
    except ValidationError:
        return value  # the merge leaves it out, and notes it


def _error(raised: object) -> KagedError:
    if not isinstance(raised, dict):
        return _invalid("the plugin's error is not a JSON object")
    message = str(raised.get("message", "the plugin gave no reason"))
    if raised.get("code") == PluginViolationError.code:
        words = raised.get("violation")
        try:
            violation = PluginViolation(**words) if isinstance(words, dict) else None
        except TypeError:
            violation = None
        return PluginViolationError(message, violation)
    foreign = raised.get("code") == _FOREIGN
    return KagedError(message, code=_FOREIGN if foreign else "plugin_raised")


def _invalid(message: str) -> KagedError:
    return KagedError(message, code="plugin_answer_invalid")


def _take_memory(memory: object, context: PluginContext) -> None:
    if not isinstance(memory, dict):
        return
    shared = memory.get("global_context")
    shared = shared if isinstance(shared, dict) else {}
    for own, theirs in (
        (context.state, memory.get("state")),
        (context.metadata, memory.get("metadata")),
        (context.global_context.state, shared.get("state")),
        (context.global_context.metadata, shared.get("metadata")),
    ):
        if isinstance(theirs, dict) and len(theirs) <= MAX_STATE_KEYS:
            own.clear()
            own.update(theirs)


# -- plugin side ---------------------------------------------------------------------------------


def decode_call(
    params: Mapping[str, Any], kind: HookKind | None
) -> tuple[Any, PluginContext, Extensions | None]:
    """Read a call: payload, context and extensions as a hook gets them. Raises ValueError."""
    data = params.get("payload")
    if kind is not None:
        payload: Any = kind.payload.model_validate(data, context={HOST: True})
    else:
        payload = StructuredData(**data) if isinstance(data, dict) else data
    memory = params.get("context") or {}
    shared: dict[str, Any] = dict(memory.get("global_context") or {"request_id": ""})
    identity = shared.pop("user_context", None)
    context = PluginContext(
        GlobalContext(
            **shared,
            user_context=None if identity is None else UserContext.model_validate(identity),
        ),
        memory.get("state"),
        memory.get("metadata"),
    )
    slots = params.get("extensions")
    return payload, context, None if slots is None else Extensions.model_validate(slots)


def encode_result(
    result: PluginResult[Any] | None, context: PluginContext, shown: Extensions | None
) -> JsonObject:
    """Write an answer down: the result, with changed slots only, and the plugin's memory.

    Raises:
        NotSendable: payload, metadata or memory hold something that has no JSON form.
    """
    data: JsonObject = {}
    if result is not None:
        data = {
            "continue_processing": result.continue_processing,
            "modified_payload": to_json(result.modified_payload),
            "violation": to_json(result.violation),
            "metadata": to_json(result.metadata),
            "denial_metadata": to_json(result.denial_metadata),
            "retry_delay_ms": result.retry_delay_ms,
        }
        _encode_slots(result.modified_extensions, shown or Extensions(), data)
    return {"result": data, "context": _memory(context)}


def foreign_result(hook: str, result: object) -> KagedError:
    """Return the error of a hook whose answer is no result."""
    return KagedError(f"hook {hook!r} returned {type_name(result)}", code=_FOREIGN)


def encode_error(error: BaseException, context: PluginContext) -> JsonObject:
    """Write down that a hook raised, with the plugin's memory. Raises NotSendable."""
    try:
        is_foreign = isinstance(error, KagedError) and error.code == _FOREIGN
    except BaseException:  # noqa: BLE001 - boundary: a subclass of the plugin's may compute its code
        is_foreign = False
    code = _FOREIGN if is_foreign else "plugin_raised"
    words: JsonObject = {"code": code, "message": describe_error(error, as_repr=True)}
    if issubclass(type(error), PluginViolationError):
        assert isinstance(error, PluginViolationError)
        words = {
            "code": error.code,
            "message": error.message,
            "violation": to_json(error.violation),
        }
    return {"error": words, "context": _memory(context)}


def _memory(context: PluginContext) -> JsonObject:
    return {
        "state": to_json(context.state),
        "metadata": to_json(context.metadata),
        "global_context": {
            "state": to_json(context.global_context.state),
            "metadata": to_json(context.global_context.metadata),
        },
    }


def _encode_slots(changed: Any, shown: Extensions, data: JsonObject) -> None:
    if changed is None:
        return
    if not isinstance(changed, Extensions):
        data["modified_extensions"] = "not Extensions"
        return
    slots: JsonObject = {}
    unsendable: list[Any] = []
    for name in Extensions.model_fields:
        value = getattr(changed, name)
        if value is getattr(shown, name) or value == getattr(shown, name):
            continue
        try:
            slots[name] = to_json(value)
        except NotSendable:
            unsendable.append(name)
    data["modified_extensions"] = slots
    data["unsendable_slots"] = unsendable


def to_json(value: Any) -> Any:
    """Turn models, sets and moments into plain JSON data. Raises NotSendable."""
    try:
        return _JSON.dump_python(
            value.model_dump(mode="json", warnings=False)
            if isinstance(value, BaseModel)
            else plain(value),
            mode="json",
        )
    except Exception as error:
        # Boundary: serialising runs methods of foreign objects; whatever fails has no JSON form.
        raise NotSendable(
            f"a {type(value).__name__} has a part without a JSON form ({type(error).__name__})",
            fix="use plain data with plugins that run outside the process",
        ) from error


_JSON: TypeAdapter[Any] = TypeAdapter(Any)

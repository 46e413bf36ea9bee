"""What becomes of a changed payload: checked, copied into the host's hands, cut to the policy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.pipeline.errors import PayloadSizeError
from kaged.pipeline.isolation import ATOMS, isolate_payload, model_dict, new_frozen
from kaged.pipeline.payloads.base import HOST, PluginPayload
from kaged.pipeline.payloads.calls import (
    ResourcePostFetchPayload,
    ResourcePreFetchPayload,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.payloads.registry import HookKind
from kaged.pipeline.shapes import LIGHT_MODELS, plain

MAX_PAYLOAD_CHARS = 1_000_000

_HOST_CONTEXT = {HOST: True}
_SMALL = frozenset({bool, int, float, type(None)})
_FEW = 16


class DefaultHookPolicy(StrEnum):
    """What happens to edits of a hook that has no policy of its own."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True)
class HookPayloadPolicy:
    """The fields of a hook's payload that plugins may change."""

    writable_fields: frozenset[str]


CLOSED = HookPayloadPolicy(writable_fields=frozenset())
"""Of hooks that have no policy where the default denies: payloads of another class included."""


def accept_payload(current: Any, returned: object, kind: HookKind | None, plugin_name: str) -> Any:
    """Copy a returned payload into the host's hands.

    For a known hook the result is exactly the hook's class with validated fields; for others it is
    any payload or dict.

    Raises:
        KagedError: `pipeline_foreign_payload`; it is something else.
    """
    if kind is None:
        if isinstance(returned, PluginPayload) or type(returned) is dict:
            return isolate_payload(returned)
        raise _foreign(plugin_name, type(returned).__name__)
    if kind.modified is dict:
        if type(returned) is not dict:
            raise _foreign(plugin_name, type(returned).__name__)
        return isolate_payload(returned)
    model: type = type(current)
    if not type(returned) is model is kind.modified:  # mostly so; to ask pydantic takes 1 µs
        model = model if isinstance(current, kind.modified) else kind.modified
        if not isinstance(returned, kind.modified):
            raise _foreign(plugin_name, type(returned).__name__)
    if not isinstance(returned, PluginPayload):
        raise _foreign(plugin_name, type(returned).__name__)
    if (twin := _plain_twin(model, model_dict(returned))) is not None:
        return twin
    assert issubclass(model, PluginPayload)
    state = isolate_payload(model_dict(returned))
    try:
        return model.model_validate(
            state.get("root") if model.__pydantic_root_model__ else state, context=_HOST_CONTEXT
        )
    except ValidationError as error:
        raise KagedError(
            f"plugin {plugin_name!r} returned a payload that does not fit:"
            f" {error.errors()[0]['msg']}",
            code="pipeline_foreign_payload",
            fix="change payloads with model_copy(update={...}) and values of the right types",
            plugin=plugin_name,
        ) from error


def _plain_twin(model: type[Any], state: dict[str, Any]) -> Any:
    """Copy values that are as validation would leave them, mostly so; None if it must say."""
    shape = _PLAIN_FIELDS.get(model)
    if shape is None or len(state) != len(shape):
        return None
    values = state.copy()
    for name, value in state.items():
        kinds = shape.get(name, ())
        if kinds is not None and type(value) not in kinds:
            return None
        if type(value) is dict:
            if kinds is not None and not all(type(key) is str for key in value):
                return None
            values[name] = isolate_payload(value)
        elif type(value) not in ATOMS:
            values[name] = isolate_payload(value)
    return new_frozen(model, values)


def apply_policy(
    given: PluginPayload, returned: PluginPayload, policy: HookPayloadPolicy, current: PluginPayload
) -> PluginPayload | None:
    """Return `current` with the writable fields that the plugin changed; None if there are none."""
    before = model_dict(given)
    updates = {
        name: value
        for name, value in model_dict(returned).items()
        if name in policy.writable_fields and plain(value) != plain(before.get(name))
    }
    return current.model_copy(update=updates) if updates else None


def resolve_policy(
    hook: str, policies: Mapping[str, HookPayloadPolicy], default: DefaultHookPolicy
) -> HookPayloadPolicy | None:
    """Return the policy of a hook; None means that edits are taken whole."""
    policy = policies.get(hook)
    if policy is None and default is DefaultHookPolicy.DENY:
        return CLOSED
    return policy


def check_size(payload: Any, what: str = "the payload") -> None:
    """Refuse a payload beyond the limit. Raises PayloadSizeError."""
    if type(payload) in LIGHT_MODELS:  # to miss an attribute of a model takes 6 µs
        values = model_dict(payload)
        check_weight(values.get("args") or values.get("result"), what)
    else:
        check_weight(getattr(payload, "args", None) or getattr(payload, "result", None), what)


def check_weight(content: Any, what: str) -> None:
    """Refuse content beyond the limit; plain texts and numbers are weighed without copying.

    Raises:
        PayloadSizeError: it is too large; `what` names it in the message.
    """
    if not content:
        return
    weight = 0
    for value in content.values() if type(content) is dict else (content,):
        if type(value) is str:
            weight += len(value)
        elif type(value) is dict and len(value) <= _FEW:
            weight += _weight_of_few(value)
        elif type(value) not in _SMALL:
            weight += len(str(value))
        if weight > MAX_PAYLOAD_CHARS:
            raise PayloadSizeError(
                f"{what} is longer than {MAX_PAYLOAD_CHARS} characters",
                fix="pass a reference instead of the content",
            )


def _weight_of_few(values: dict[Any, Any]) -> int:
    """Return how long a small dict is as text, about; its texts and numbers are not copied."""
    weight = 0
    for name, value in values.items():
        if type(name) is not str:
            return len(str(values))
        weight += len(name)
        if type(value) is str:
            weight += len(value)
        elif type(value) not in _SMALL:
            weight += len(str(value))
    return weight


def _foreign(plugin_name: str, type_name: str) -> KagedError:
    return KagedError(
        f"plugin {plugin_name!r} returned {type_name} as modified_payload",
        code="pipeline_foreign_payload",
        fix="return a payload of the hook's own class, made with model_copy",
        plugin=plugin_name,
    )


_PLAIN_FIELDS: dict[type[Any], dict[str, tuple[type, ...] | None]] = {
    ToolPreInvokePayload: {
        "name": (str,),
        "args": (dict, type(None)),
        "headers": (type(None),),
    },
    ToolPostInvokePayload: {"name": (str,), "result": None},
    ResourcePreFetchPayload: {"uri": (str,), "metadata": (dict, type(None))},
    ResourcePostFetchPayload: {"uri": (str,), "content": None},
}
"""Of the payloads that are edited most, the exact types that each field may have; None means any.
A dict among them has texts as keys, as the models say."""

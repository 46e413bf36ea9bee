"""`PluginPayload`, and the shapes that payload fields of outside data take."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel, ValidationInfo, field_validator

from kaged.pipeline.shapes import Frozen

MAX_COERCE_DEPTH = 20
MAX_COERCE_BREADTH = 500

HOST = "kaged.pipeline.host"
"""Key in the validation context that says: the host itself builds this payload."""


class PluginPayload(Frozen):
    """Base of all hook payloads; frozen, changed by `model_copy(update={...})`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


class StructuredData(BaseModel):
    """A dict whose keys read as attributes: `result.messages[0].content.text`."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class HttpHeaderPayload(RootModel[dict[str, str]], PluginPayload):  # pyright: ignore[reportIncompatibleMethodOverride] - pydantic supports this mix
    """A map of HTTP headers that reads like a dict."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    def __iter__(self) -> Iterator[str]:  # pyright: ignore[reportIncompatibleMethodOverride] - keys, as a dict does
        return iter(self.root)

    def __getitem__(self, name: str) -> str:
        return self.root[name]

    def __setitem__(self, name: str, value: str) -> None:
        self.root[name] = value

    def __len__(self) -> int:
        return len(self.root)


class PayloadWithHeaders(PluginPayload):
    """A payload with the deprecated field `headers`; only the host fills it without a warning."""

    @field_validator("headers", mode="before", check_fields=False)
    @classmethod
    def _warn_of_headers(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and not (info.context or {}).get(HOST):
            warnings.warn(
                f"{cls.__name__}.headers is deprecated; use extensions.http.headers",
                DeprecationWarning,
                stacklevel=3,
            )
        return value


def coerce_nested(value: Any, depth: int = 0) -> Any:
    """Turn nested dicts into objects with attributes, within limits; models stay as they are."""
    if depth >= MAX_COERCE_DEPTH or isinstance(value, BaseModel):
        return value
    if isinstance(value, dict) and len(value) <= MAX_COERCE_BREADTH:
        return StructuredData(
            **{str(name): coerce_nested(item, depth + 1) for name, item in value.items()}
        )
    if isinstance(value, list) and len(value) <= MAX_COERCE_BREADTH:
        return [coerce_nested(item, depth + 1) for item in value]
    return value


def coerce_messages(value: Any) -> Any:
    """Turn the dicts of a message list into objects with attributes."""
    if isinstance(value, list):
        return [coerce_nested(item) if isinstance(item, dict) else item for item in value]
    return value

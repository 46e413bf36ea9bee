"""`CopyOnWriteDict` and `CopyOnWriteList`: private copies that know what was changed in them.

They are real dicts and lists, so that native code and every inherited method see their contents.
What they began with is kept beside them, and a change is what differs from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from kaged.pipeline.isolation import isolate_payload, model_dict


class CopyOnWriteDict(dict[Any, Any]):
    """A private copy of a dict."""

    def __init__(self, original: Mapping[Any, Any]) -> None:
        super().__init__(original)
        self._before = dict(self)

    def __repr__(self) -> str:
        return f"CopyOnWriteDict({super().__repr__()})"

    def get_modifications(self) -> dict[Any, Any]:
        """Return what was added or replaced."""
        before = self._before
        return {
            key: value
            for key, value in self.items()
            if key not in before or before[key] is not value
        }

    def get_deleted(self) -> set[Any]:
        """Return the keys that are gone."""
        return self._before.keys() - self.keys()

    def has_modifications(self) -> bool:
        """Return whether anything was added, replaced or deleted."""
        return bool(self.get_modifications() or self.get_deleted())


class CopyOnWriteList(list[Any]):
    """A private copy of a list."""

    def __init__(self, original: Iterable[Any]) -> None:
        super().__init__(original)
        self._before = list(self)

    def __repr__(self) -> str:
        return f"CopyOnWriteList({super().__repr__()})"

    def has_modifications(self) -> bool:
        """Return whether the items are others than at the beginning, or in another order."""
        before = self._before
        return len(self) != len(before) or any(
            item is not earlier for item, earlier in zip(self, before, strict=True)
        )


def copyonwrite(value: Any) -> Any:
    """Return a private copy of a dict or list. Raises TypeError for anything else."""
    if isinstance(value, dict):
        return CopyOnWriteDict(isolate_payload(value))
    if isinstance(value, list):
        return CopyOnWriteList(isolate_payload(value))
    raise TypeError(f"No copy-on-write wrapper available for {type(value).__name__}")


def wrap_payload_for_isolation(payload: Any) -> Any:
    """Return a private copy of a payload; its dicts and lists know what was changed in them."""
    return _with_tracking(isolate_payload(payload))


def _with_tracking(payload: Any) -> Any:
    if not isinstance(payload, BaseModel):
        return payload
    values = model_dict(payload)  # of our own copy
    for name, value in values.items():
        if type(value) is dict:
            values[name] = CopyOnWriteDict(value)
        elif type(value) is list:
            values[name] = CopyOnWriteList(value)
        else:
            _with_tracking(value)
    return payload

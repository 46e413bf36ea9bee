"""`Frozen` and `Slot`: what every model that travels in `Extensions` has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

LIGHT_MODELS: set[type[BaseModel]] = set()
"""Our models whose field values are all there is, without extra or private ones."""


class Frozen(BaseModel):
    """A frozen value object: equal by value, changed only by `model_copy(update={...})`.

    The pipeline copies such objects by the thousand. A light copy carries its values alone; the
    rest of a pydantic model's state (set fields, extra and private values) is worked out here when
    somebody asks.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_kwargs: Any) -> None:
        if not cls.__private_attributes__ and cls.model_config.get("extra") != "allow":
            LIGHT_MODELS.add(cls)


def _absent_state(model: BaseModel, name: str) -> Any:
    """Return the state that a light copy does not carry; called for names that are not there."""
    if name in _NONE_HERE:
        return None
    if name == "__pydantic_fields_set__":
        return {
            field
            for field, info in type(model).model_fields.items()
            if model.__dict__.get(field)
            != info.get_default(call_default_factory=True, validated_data={})
        }
    return _pydantic_getattr(model, name)  # private values of a subclass are pydantic's business


# Past the type checker, for which a `__getattr__` would make every misspelt attribute right.
_pydantic_getattr = vars(BaseModel)["__getattr__"]
type.__setattr__(Frozen, "__getattr__", _absent_state)


class Slot(Frozen):
    """One slot of `Extensions`, or a value inside one."""


_NONE_HERE = frozenset({"__pydantic_extra__", "__pydantic_private__"})

"""Parameters of RPC methods, read once into types; every mistake is `capability_invalid_input`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kaged.base import JsonObject
from kaged.kernel.service_ids import ServiceId, ServiceIdInvalid, parse_service_id
from kaged.services.errors import CapabilityInvalidInput

REF_CHARS: Final = 128
ID_CHARS: Final = 128
IDS_LIMIT: Final = 1024
TEXT_CHARS: Final = 16 * 1024


# The same few ids come with every call; only those that are valid are remembered.
_service_id = lru_cache(maxsize=IDS_LIMIT)(parse_service_id)


def capability_param(params: JsonObject) -> ServiceId:
    """Read `capability`: a full id; a bare name never stands for one."""
    given = params.get("capability")
    try:
        if type(given) is str and len(given) <= ID_CHARS:
            return _service_id(given)
        return parse_service_id(given)
    except ServiceIdInvalid as error:
        raise CapabilityInvalidInput(str(error)) from None


def optional_capability(params: JsonObject) -> ServiceId | None:
    """Read `capability` where it is only a filter."""
    if params.get("capability") in (None, ""):  # a list has no hash
        return None
    return capability_param(params)


def text_param(params: JsonObject, name: str, limit: int = TEXT_CHARS) -> str | None:
    """Read an optional text; blanks around it are cut and a blank one is absent."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > limit:
        raise CapabilityInvalidInput(f"{name} must be text of at most {limit} characters")
    return value.strip() or None


def name_param(params: JsonObject, name: str) -> str | None:
    """Read an optional name of an account: short and without control characters."""
    value = text_param(params, name, REF_CHARS)
    if value is not None and not value.isprintable():
        raise CapabilityInvalidInput(f"{name} may hold no control characters")
    return value


def required_param(params: JsonObject, name: str) -> str:
    """Read a text that must be there."""
    value = text_param(params, name, ID_CHARS)
    if value is None:
        raise CapabilityInvalidInput(f"{name} is missing")
    return value


def flag_param(params: JsonObject, name: str) -> bool:
    """Read an optional switch, off by default."""
    value = params.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise CapabilityInvalidInput(f"{name} must be true or false")
    return value


def object_param(params: JsonObject, name: str) -> JsonObject:
    """Read an object; an absent one is empty."""
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CapabilityInvalidInput(f"{name} must be an object")
    return value

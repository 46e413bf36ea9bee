"""Service capability ids (`gog.email`): namespace, name and operation of an account capability."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NewType, cast

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, fail_closed

MAX_PART_CHARS = 64
"""The longest namespace or name; the grammar sets no limit, storage keys and screens do."""

MAX_OPERATION_CHARS = 128

Namespace = NewType("Namespace", str)
OperationName = NewType("OperationName", str)

_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
# Only blanks are trimmed: a line end around an id is a mistake in whoever sent it.
_BLANKS = " \t"


class ServiceIdInvalid(KagedError):
    """The text is not a full service capability id, a namespace or an operation name."""

    code = "capability_invalid_input"


@dataclass(frozen=True, slots=True, order=True)
class ServiceId:
    """One account capability of one integration. No id covers another one."""

    namespace: Namespace
    name: str

    @property
    def text(self) -> str:
        """The id as it is written and stored: `<namespace>.<name>`."""
        return f"{self.namespace}.{self.name}"


def parse_service_id(value: object) -> ServiceId:
    """Read a full id; blanks around it are trimmed.

    A bare name is refused even when only one namespace offers it.

    Raises:
        ServiceIdInvalid: anything but two parts of `[a-z0-9][a-z0-9_-]*` joined by one dot.
    """
    if isinstance(value, str):
        namespace, _, name = value.strip(_BLANKS).partition(".")
        if _is_part(namespace) and _is_part(name):
            return ServiceId(Namespace(namespace), name)
    raise ServiceIdInvalid(
        f"not a capability id: {ascii(value)[:120]}",
        fix="write <namespace>.<name> in lower case, for example gog.email",
    )


def parse_service_ids(values: object) -> frozenset[ServiceId]:
    """Read a list of full ids, such as the ones a skill declares; repeats count once.

    Raises:
        ServiceIdInvalid: not a list, or an entry that is no full id.
    """
    if not isinstance(values, list | tuple):
        raise ServiceIdInvalid("capability ids must be a list", fix='for example ["gog.email"]')
    return frozenset(map(parse_service_id, cast("Iterable[object]", values)))


def parse_namespace(value: object) -> Namespace:
    """Read the namespace of an integration; blanks around it are trimmed.

    Raises:
        ServiceIdInvalid: anything but `[a-z0-9][a-z0-9_-]*`.
    """
    if isinstance(value, str) and _is_part(value.strip(_BLANKS)):
        return Namespace(value.strip(_BLANKS))
    raise ServiceIdInvalid(
        f"not a namespace: {ascii(value)[:120]}", fix="use lower case letters, digits, _ and -"
    )


def parse_operation(value: object) -> OperationName:
    """Read the name of an operation; blanks around it are trimmed.

    Raises:
        ServiceIdInvalid: no text, blank, too long or with characters that cannot be shown.
    """
    if isinstance(value, str):
        name = value.strip(_BLANKS)
        if 0 < len(name) <= MAX_OPERATION_CHARS and name.isprintable():
            return OperationName(name)
    raise ServiceIdInvalid(f"not an operation name: {ascii(value)[:120]}")


def print_service_ids(ids: Iterable[ServiceId]) -> list[str]:
    """Write a set of ids as a sorted list of texts."""
    return [service_id.text for service_id in sorted(ids)]


@fail_closed("service.namespace")
def decide_offer(namespace: Namespace, offered: ServiceId) -> Decision:
    """Decide whether a provider of `namespace` may offer this id: only under its own prefix."""
    if offered.namespace == namespace and _is_part(namespace):
        return Decision.allow("service.namespace", offered.text)
    return Decision.deny(
        "service.namespace", f"{namespace} may not offer {offered.text}", code=ServiceIdInvalid.code
    )


@fail_closed("service.declared")
def decide_service(declared: frozenset[ServiceId], wanted: ServiceId) -> Decision:
    """Decide whether a skill that declared these ids may call this one: only a listed id."""
    if wanted in declared:
        return Decision.allow("service.declared", wanted.text)
    return Decision.deny(
        "service.declared",
        wanted.text,
        f"declare {wanted.text} in the skill's capabilities",
        "capability_access_denied",
    )


def _is_part(text: str) -> bool:
    return len(text) <= MAX_PART_CHARS and _PART.fullmatch(text) is not None

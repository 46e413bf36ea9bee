"""`find_placeholder`: where in a request a placeholder stands, if it stands where it may."""

from __future__ import annotations

import base64
import binascii
from typing import Final, TypeAlias
from urllib.parse import unquote

from kaged.base.lazy_dataclass import dataclass
from kaged.credentials.placeholders import holds_placeholder
from kaged.credentials.refusals import RefusalRule, RequestRefused, malformed, refused
from kaged.kernel.bindings import (
    PLACEHOLDER,
    CageCredential,
    CageCredentials,
    Place,
    PlaceKind,
)

Header: TypeAlias = tuple[bytes, bytes]
_BASIC: Final = b"basic "
_BEARER: Final = b"bearer "
_MAX_BASIC: Final = 8192


@dataclass(frozen=True, slots=True)
class Found:
    """A placeholder in a place of its binding. `at` is the header's number, -1 in the query."""

    credential: CageCredential
    place: Place
    at: int
    user: bytes = b""
    prefix: bytes = b""


def find_placeholder(held: CageCredentials, query: bytes, headers: list[Header]) -> Found | None:
    """Return the one placeholder of a request's query and headers, or None.

    Raises:
        RequestRefused: it stands where it may not, belongs to another cage, or is not the only one.
    """
    found: list[Found] = []
    for at, (name, value) in enumerate(headers):
        placed = _in_header(held, at, name, value)
        if placed is not None:
            found.append(placed)
        elif holds_placeholder(value):
            raise misplaced(f"the header {name.decode('ascii')[:64]}")
    in_query = 0
    for _, name, value in parameters(query):
        if PLACEHOLDER.fullmatch(value.decode("latin-1")):
            found.append(_in_query(held, name, value))
            in_query += 1
        elif holds_placeholder(name) or holds_placeholder(value):
            raise misplaced("the query")
    if not in_query and holds_placeholder(query):
        raise misplaced("the query")
    if len(found) > 1:
        raise refused(
            RefusalRule.SEVERAL,
            "The request holds more than one placeholder.",
            "send one credential with a request",
        )
    return found[0] if found else None


def _in_header(held: CageCredentials, at: int, name: bytes, value: bytes) -> Found | None:
    lowered = value[:16].lower()
    if name == b"authorization" and lowered.startswith(_BASIC):
        return _in_basic(held, at, value)
    text = value.decode("latin-1")
    match = PLACEHOLDER.search(text)
    if match is None or match.end() != len(text):
        return None
    credential = _known(held, match[0])
    prefix = value[: match.start()]
    for place in credential.binding.places:
        if place.kind is PlaceKind.BEARER:
            right = name == b"authorization" and prefix.lower() == _BEARER
        elif place.kind is PlaceKind.HEADER:
            wanted = place.prefix.lower().encode("ascii")
            right = name == place.name.encode("ascii") and prefix.lower() == wanted
        else:
            right = False
        if right:
            return Found(credential, place, at, prefix=prefix)
    raise _not_bound_there(credential, f"the header {name.decode('ascii')[:64]}")


def _in_basic(held: CageCredentials, at: int, value: bytes) -> Found | None:
    prefix, coded = value[: len(_BASIC)], value[len(_BASIC) :].strip()
    if len(coded) > _MAX_BASIC:
        raise malformed("its Authorization is too long")
    try:
        plain = base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None  # a placeholder in there is found as text
    user, colon, password = plain.partition(b":")
    whole = {one: PLACEHOLDER.fullmatch(one.decode("latin-1")) for one in (user, password)}
    if not colon or not any(whole.values()):
        if holds_placeholder(plain):
            raise misplaced("the header authorization")
        return None
    if whole[user] and whole[password] and user != password:
        raise refused(RefusalRule.SEVERAL, "The request holds more than one placeholder.")
    is_password = bool(whole[password])
    credential = _known(held, (password if is_password else user).decode("latin-1"))
    for place in credential.binding.places:
        if place.kind is PlaceKind.BASIC and is_password:
            # Some tools write the token into both; it leaves in the password only.
            beside = user if not whole[user] else place.name.encode("ascii", "replace")
            if place.name and beside != place.name.encode():
                continue
            if holds_placeholder(beside):
                raise misplaced("the header authorization")
            return Found(credential, place, at, user=beside, prefix=prefix)
        if place.kind is PlaceKind.BASIC_USER and whole[user] and not is_password:
            if holds_placeholder(password):
                raise misplaced("the header authorization")
            return Found(credential, place, at, user=password, prefix=prefix)
    raise _not_bound_there(credential, "a user name or password (Basic)")


def _in_query(held: CageCredentials, name: bytes, value: bytes) -> Found:
    credential = _known(held, value.decode("latin-1"))
    for place in credential.binding.places:
        if place.kind is PlaceKind.QUERY and place.name.encode("ascii") == name:
            return Found(credential, place, -1)
    raise _not_bound_there(credential, f"the query parameter {name.decode('latin-1')[:64]!a}")


def parameters(query: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return the parts of a query: as they stand, their names, and their values unescaped."""
    found: list[tuple[bytes, bytes, bytes]] = []
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        found.append((part, name, unquote(value.decode("ascii")).encode("utf-8", "replace")))
    return found


def _known(held: CageCredentials, placeholder: str) -> CageCredential:
    credential = held.by_placeholder(placeholder)
    if credential is None:
        raise refused(
            RefusalRule.FOREIGN,
            "The placeholder in the request belongs to no credential of this cage.",
            "use the placeholder that this cage was given; each cage has its own",
        )
    return credential


def _not_bound_there(credential: CageCredential, where: str) -> RequestRefused:
    return refused(
        RefusalRule.PLACE,
        f"The credential {credential.binding.name} is not bound to {where}.",
        "send it where the binding's `place` says",
    )


def misplaced(where: str) -> RequestRefused:
    """Return the error for a placeholder where none may stand."""
    return refused(
        RefusalRule.PLACE,
        f"The request holds a placeholder of a credential in {where}, where none may stand.",
        "send a placeholder by itself, in the place that its credential is bound to",
    )

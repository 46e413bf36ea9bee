"""`facts_of`: what a trusted front end says about a person, in the headers that were agreed on.

The caller has made sure that the request comes from such a front end. Everything is bounded, and a
header that makes no sense refuses the request: a person without their roles is another person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from kaged.base import KagedError
from kaged.config.people_section import FrontEndSection
from kaged.kernel.identity import MAX_GROUPS, PersonFacts, is_group_name

MAX_CLAIM_CHARS: Final = 512

ReadHeader = Callable[[bytes], str | None]
"""Returns the one value of a header; raises when it occurs twice."""


def facts_of(person_id: str, front_end: FrontEndSection, read: ReadHeader) -> PersonFacts:
    """Return what the headers say. Texts that are not ASCII come percent-encoded.

    Raises:
        KagedError: `access_denied`; a header occurs twice, or holds what cannot be used.
    """
    claims = {name: _claim(read, at) for name, at in front_end.claims.items()}
    return PersonFacts(
        person_id,
        _groups(read, front_end.roles),
        _groups(read, front_end.teams),
        tuple(sorted((name, value) for name, value in claims.items() if value is not None)),
    )


def _groups(read: ReadHeader, header: str | None) -> frozenset[str]:
    said = None if header is None else read(header.encode())
    if header is None or not said:
        return frozenset()
    # Split first: a comma that was encoded belongs to a name, and no name may have one.
    names = [unquote(one.strip(), errors="replace") for one in said.split(",")]
    if len(names) > MAX_GROUPS or not all(map(is_group_name, names)):
        raise KagedError(
            f"The proxy sent a header {header} that names no roles or teams.",
            code="access_denied",
            fix=f"Send up to {MAX_GROUPS} names of up to 128 characters, separated by commas.",
        )
    return frozenset(names)


def _claim(read: ReadHeader, header: str) -> str | None:
    said = read(header.encode())
    if not said:
        return None
    value = unquote(said, errors="replace").strip()
    if len(value) > MAX_CLAIM_CHARS or not value.isprintable():
        raise KagedError(
            f"The proxy sent a header {header} that cannot be a claim.",
            code="access_denied",
            fix=f"Send up to {MAX_CLAIM_CHARS} printable characters, others percent-encoded.",
        )
    return value or None

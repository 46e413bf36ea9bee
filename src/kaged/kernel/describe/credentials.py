"""What a credential at the gate allows, in words; and why a cage that asks for one has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kaged.kernel.bindings import CredentialBinding, Place, PlaceKind
from kaged.kernel.decision import Decision
from kaged.kernel.describe.sentence import Sentence, SentenceSeverity
from kaged.kernel.request_rules import RequestRule, Rule

_PLAIN_HTTP: Final = "whoever is on the way to a server without TLS reads it"


def describe_credential(
    binding: CredentialBinding,
    env: Iterable[str],
    files: Iterable[str],
    *,
    people: Iterable[str] = (),
    skills: Iterable[str] = (),
) -> tuple[Sentence, ...]:
    """Return where a credential may go, for which requests, and what programs see of it.

    `people` and `skills` are those to whom alone a cage has it, when they are given.
    """
    hosts = ", ".join(one.text for one in binding.destinations)
    places = ", ".join(map(_place, binding.places))
    where = f"may use the credential {binding.name} at {hosts}, as {places}, without seeing it"
    plain = not all(one.tls for one in binding.destinations)
    found = [Sentence.dangerous_if(where, _PLAIN_HTTP if plain else "")]
    if binding.rules:
        rules = "; ".join(_rule(one) for one in binding.rules)
        found.append(Sentence(f"may use {binding.name} for these requests only: {rules}"))
    for names, words in ((people, "while it acts for"), (skills, "in commands of the skills")):
        if listed := ", ".join(names):
            found.append(Sentence(f"has {binding.name} only {words} {listed}"))
    seen = [*env, *(f"the file of {one}" for one in files)]
    if seen:
        found.append(Sentence(f"sees a placeholder for {binding.name} in {', '.join(seen)}"))
    return tuple(found)


def describe_missing_credential(name: str, decision: Decision) -> Sentence:
    """Return why a cage that asks for a credential does not have it."""
    return Sentence(
        f"asks for the credential {name} and does not have it",
        SentenceSeverity.WARNING,
        decision.detail,
        decision.remedy,
    )


def _rule(rule: Rule) -> str:
    denies = isinstance(rule, RequestRule) and not rule.allow
    return f"not {rule.text}" if denies else rule.text


def _place(place: Place) -> str:
    match place.kind:
        case PlaceKind.BEARER:
            return "bearer token"
        case PlaceKind.BASIC:
            return "password" + (f" of {place.name}" if place.name else "")
        case PlaceKind.BASIC_USER:
            return "user name"
        case PlaceKind.QUERY:
            return f"the query parameter {place.name}"
        case PlaceKind.HEADER:
            return f"the header {place.name}"

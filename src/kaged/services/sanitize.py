"""`Hardener`: what a provider gives back, looked through before it may leave the host.

One pass over the value and a few searches over its JSON. Keys that name a credential refuse the
whole output, and so does any secret that the host knows. What merely has the shape of a secret is
masked, or refused in strict mode, except in texts that the operation's schema calls free text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from kaged.audit.credentials import REDACTED, fold_key
from kaged.base import JsonObject, JsonValue
from kaged.services.errors import CapabilityInvalidOutput
from kaged.services.known_secrets import looks_random
from kaged.services.secret_search import CallSecrets

OUTPUT_LIMIT_BYTES: Final = 1024 * 1024
DEPTH_LIMIT: Final = 32
PATH_CHARS: Final = 200

# SC-AMB-22 names the least set; the rest is what else nobody shows to a user.
CREDENTIAL_KEYS: Final = frozenset({
    "access_token", "refresh_token", "id_token", "client_secret", "cookie", "cookies",
    "set_cookie", "authorization",
    "api_key", "apikey", "x_api_key", "secret", "secret_key", "client_assertion", "private_key",
    "password", "passwd", "passphrase", "proxy_authorization", "www_authenticate", "bearer",
    "bearer_token", "session_token", "session_cookie", "csrf_token", "device_code",
    "code_verifier", "credential", "credentials", "vault_ref", "context_token", "auth_token",
    "oauth_token", "cookie_jar", "authorization_code", "app_password", "access_key",
    "secret_access_key", "signing_key", "ssh_key",
})  # fmt: skip
_HEADERS: Final = frozenset(
    {
        "authorization",
        "proxy_authorization",
        "cookie",
        "set_cookie",
        "www_authenticate",
        "x_api_key",
        "x_auth_token",
    }
)
_PAIR_NAMES: Final = frozenset({"name", "key", "header"})
_PAGE_TOKENS: Final = (
    "page_token",
    "next_token",
    "sync_token",
    "continuation_token",
    "cursor_token",
    "delta_token",
)
_FINE, _REFUSED, _MAYBE, _PAIR = 0, 1, 2, 3
# The keys that decide by themselves; a pair is a credential by its value.
_NAMED: Final = frozenset({_REFUSED, _MAYBE})

# What has the shape of a secret wherever it stands. The audit log masks more, such as "password:
# x"; here that would garble what people write to each other.
_SHAPES: Final = re.compile(
    r"-----BEGIN[A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"
    r"|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}|\bxox[abeprs]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"
    r"|\bnpm_[A-Za-z0-9]{30,}|\bhf_[A-Za-z0-9]{30,}|\bpypi-[\w-]{30,}"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    re.DOTALL,
)
# Each of them holds one of these pieces, and most outputs hold none. Plain bytes are found at the
# speed of memory, one after the other; all of them in one pattern would be looked for at every
# byte and take four times as long. Before each group stands what all of its shapes hold: whether
# a single byte is there at all is known in next to no time.
_SHAPE_PIECES: Final[tuple[tuple[bytes, tuple[bytes, ...], re.Pattern[bytes] | None], ...]] = (
    (b"-", (b"-----BEGIN", b"glpat-", b"sk-", b"xox", b"xapp-", b"pypi-"), None),
    (b"_", (b"github_pat_", b"npm_", b"hf_"), re.compile(rb"gh[pousr]_")),
    (b"J", (b"eyJ",), None),
    (b".", (b"ya29.",), None),
    (b"@", (), re.compile(rb"://[^\s/\"]*@")),
    # What follows them may be any blank, and JSON writes some of those as escapes.
    (b"earer", (b"earer",), None),
    (b"asic", (), re.compile(rb"asic[^A-Za-z0-9]")),
    (b"A", (), re.compile(rb"A(?:KIA|SIA|Iza)")),
)

FreeText: TypeAlias = "Mapping[str, FreeText] | bool"
"""Where free text is allowed: True, or per property (`*` for the items of a list)."""


class Hardened(NamedTuple):
    """An output that may leave: its value, its size, and where something was masked.

    A named tuple and not a dataclass, because every call makes one.
    """

    output: JsonObject
    size_bytes: int
    masked: tuple[str, ...] = ()


class OutputRefused(CapabilityInvalidOutput):
    """The output holds what must not leave; the message names a rule, never a value."""

    def __init__(self, rule: str, path: str) -> None:
        super().__init__(f"the provider's output was refused ({rule})")
        self.rule = rule
        self.path = path


class _Foreign(Exception):
    """The value holds a type that JSON does not have."""


def harden(
    value: object,
    *,
    secrets: CallSecrets | None = None,
    free_text: FreeText = False,
    strict: bool = False,
) -> Hardened:
    """Check an output and return it as it may be sent; `secrets` are those of the call by now.

    Raises:
        OutputRefused: it holds a credential, or is no JSON object within the limits.
    """
    known = secrets or CallSecrets()
    try:
        try:
            return _check(value, known, free_text, strict)
        except _Foreign:
            return _check(_plain(value), known, free_text, strict)
    except OutputRefused as refused:
        # The names of keys are the provider's words; before they are cut, as all of them.
        refused.path = known.scrub(refused.path)[:PATH_CHARS]
        raise


def free_text_of(schema: Mapping[str, JsonValue]) -> FreeText:
    """Find where an output schema says `x-free-text: true`."""
    return _free_text(schema, 0)


def _check(value: object, known: CallSecrets, free_text: FreeText, strict: bool) -> Hardened:
    if type(value) is not dict:
        if isinstance(value, dict) or is_dataclass(value):
            raise _Foreign
        _refuse("not an object", "")
    output: JsonObject = value
    keys = _keys(output)
    looked = keys is None or not _NAMED.isdisjoint(map(_verdict, keys))
    if looked:
        _walk(output)
    try:
        text = msgspec.json.encode(output)
    except (TypeError, ValueError, RecursionError):
        _refuse("not JSON", "")
    if len(text) > OUTPUT_LIMIT_BYTES:
        _refuse("too large", "")
    if not looked and _may_hold_headers(text.lower()):
        _walk(output)
    if known.found_in(text):
        _refuse("known secret", "")
    if free_text is True or not _may_hold_shapes(text):
        return Hardened(output, len(text))
    masked: list[str] = []
    cleaned = _masked(output, free_text, "", masked)
    if not masked:
        return Hardened(output, len(text))
    if strict:
        _refuse("secret shape", masked[0])
    assert isinstance(cleaned, dict)
    return Hardened(cleaned, len(msgspec.json.encode(cleaned)), tuple(masked))


def _may_hold_shapes(text: bytes) -> bool:
    find = text.find
    for needed, pieces, pattern in _SHAPE_PIECES:
        if find(needed) >= 0:
            for piece in pieces:
                if find(piece) >= 0:
                    return True
            if pattern is not None and pattern.search(text) is not None:
                return True
    return False


def _may_hold_headers(lower: bytes) -> bool:
    """Return whether a text in lower case holds what the name of a secret header is made of."""

    def has(word: bytes) -> bool:
        return lower.find(word) >= 0

    return (
        has(b"authorization")
        or has(b"cookie")
        or has(b"authenticate")
        or (has(b"api") and has(b"key"))
        or (has(b"auth") and has(b"token"))
        or has(_KELVIN)
    )


def _keys(output: JsonObject) -> set[str] | None:
    """Return all keys of an output that is plain JSON of no more than the allowed depth.

    None for any other, which `_walk` looks at one by one. Here everything is done for a whole
    level at once, because most outputs are long lists with a handful of keys.
    """
    keys: set[str] = set()
    level: list[Any] = [output]
    for _ in range(DEPTH_LIMIT):
        keys.update(*[one for one in level if type(one) is dict])
        values = list(
            chain.from_iterable([one.values() if type(one) is dict else one for one in level])
        )
        kinds = set(map(type, values))
        if not kinds <= _JSON_TYPES:
            return None
        if float in kinds and not all(math.isfinite(x) for x in values if type(x) is float):
            return None
        if kinds.isdisjoint(_HOLDERS):
            return keys if set(map(type, keys)) <= _KEY_TYPES else None
        level = [one for one in values if type(one) is dict or type(one) is list]
    return None


def _walk(output: JsonObject) -> None:
    """Look at every key and every type, level by level; never deeper than the limit."""
    # Where a holder stands is kept as steps and only written out for a refusal.
    level: list[tuple[_Steps, dict[str, JsonValue] | list[JsonValue]]] = [((), output)]
    for _ in range(DEPTH_LIMIT):
        below: list[tuple[_Steps, Any]] = []
        for steps, holder in level:
            if type(holder) is dict:
                if any(map(_verdict, holder)):
                    _judge_keys(steps, holder)
                children = holder.items()
            else:
                if len(holder) == 2 and type(holder[0]) is str and _is_header(*holder):  # type: ignore[index,misc]  # a list
                    _refuse("credential header", _path((*steps, "[]")))
                children = (("[]", value) for value in holder)
            for key, value in children:
                kind = type(value)
                if kind in _PLAIN:
                    continue
                if kind is dict or kind is list:
                    below.append(((*steps, key), value))
                elif kind is not float:
                    raise _Foreign
                elif not math.isfinite(value):  # type: ignore[arg-type]  # a float
                    _refuse("not JSON", _path(steps))
        if not below:
            return
        level = below
    _refuse("too deep", _path(level[0][0]))


_Steps: TypeAlias = tuple[str, ...]
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_HOLDERS: Final = frozenset({dict, list})
_JSON_TYPES: Final = _PLAIN | _HOLDERS | {float}
_KEY_TYPES: Final = frozenset({str})
# A letter of its own in Unicode that becomes a `k` in lower case.
_KELVIN: Final = "\N{KELVIN SIGN}".encode()


def _path(steps: _Steps) -> str:
    """Write steps as people write them: `messages[].from`."""
    return ".".join(steps).replace(".[]", "[]")


def _judge_keys(steps: _Steps, holder: dict[str, JsonValue]) -> None:
    for key, value in holder.items():
        verdict = _verdict(key)
        where = (*steps, key)
        if verdict == _REFUSED:
            _refuse("credential key", _path(where))
        if verdict == _MAYBE and isinstance(value, str) and looks_random(value):
            _refuse("credential key", _path(where))
        if verdict == _PAIR and isinstance(value, str) and _is_header(value, holder.get("value")):
            _refuse("credential header", _path(where))


@lru_cache(maxsize=8192)
def _verdict(key: str) -> int:
    """Return what a key stands for: nothing, a credential, perhaps one, the name of a pair."""
    if type(key) is not str:
        raise _Foreign
    folded = fold_key(key).strip("_")
    if folded in CREDENTIAL_KEYS or folded.replace("_", "") in _JOINED:
        return _REFUSED
    if folded in _PAIR_NAMES:
        return _PAIR
    if folded.endswith(_PAGE_TOKENS):
        return _FINE
    words = folded.split("_")
    if words[-1] in {"token", "secret", "password", "passwd", "apikey", "credential"}:
        return _MAYBE
    return _FINE


# "accesstoken" and "setcookie" are the same words without the gaps.
_JOINED: Final = frozenset(key.replace("_", "") for key in CREDENTIAL_KEYS)


def _is_header(name: str, value: object) -> bool:
    if not isinstance(value, str) or fold_key(name) not in _HEADERS:
        return False
    # A list of two tags may well begin with "cookie"; a header's value is no single word.
    return len(value) >= 8 and (" " in value or "=" in value or looks_random(value))


def _masked(value: JsonValue, free: FreeText, path: str, masked: list[str]) -> JsonValue:
    # Recursion is bounded: _walk has refused anything deeper than DEPTH_LIMIT.
    if free is True:
        return value
    if isinstance(value, str):
        clean = _SHAPES.sub(REDACTED, value)
        if clean != value:
            masked.append(path)
        return clean
    inner = free if isinstance(free, Mapping) else {}
    if isinstance(value, dict):
        cleaned: JsonObject = {}
        for key, item in value.items():
            name = _SHAPES.sub(REDACTED, key)
            where = f"{path}.{name}" if path else name
            if name != key:
                masked.append(where)
            cleaned[name] = _masked(item, inner.get(key, False), where, masked)
        return cleaned
    if isinstance(value, list):
        below = inner.get("*", False)
        return [_masked(item, below, f"{path}[]", masked) for item in value]
    return value


def _plain(value: object, depth: int = 0) -> Any:
    """Turn what providers in Python like to return into JSON; refuses bytes and the unknown."""
    if depth > DEPTH_LIMIT:
        _refuse("too deep", "")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            _refuse("not JSON", "")
        return {str.__str__(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name), depth + 1) for one in fields(value)}
    raise OutputRefused("not JSON", "")


def _free_text(schema: JsonValue | Mapping[str, JsonValue], depth: int) -> FreeText:
    if not isinstance(schema, Mapping) or depth > DEPTH_LIMIT:
        return False
    if schema.get("x-free-text") is True:
        return True
    found: dict[str, FreeText] = {}
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, inner in properties.items():
            below = _free_text(inner, depth + 1)
            if below:
                found[name] = below
    below = _free_text(schema.get("items"), depth + 1)
    if below:
        found["*"] = below
    return found or False


def _refuse(rule: str, path: str) -> NoReturn:
    raise OutputRefused(rule, path)

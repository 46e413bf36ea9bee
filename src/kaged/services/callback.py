"""What a person brings back from an auth page, made into one code: `read_completion`."""

from __future__ import annotations

import hmac
import re
from dataclasses import field
from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from kaged.base.lazy_dataclass import dataclass
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityAuthFlowInvalid,
    CapabilityError,
)

CALLBACK_LIMIT_CHARS: Final = 8192
CODE_LIMIT_CHARS: Final = 4096
_FIELDS_LIMIT: Final = 100

_PAIRS: Final = {"(": ")", "[": "]", "{": "}", "<": ">", "`": "`", '"': '"', "'": "'"}
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_CODE_FIELD: Final = re.compile(r"(?:^|[?&#\s])code=")


@dataclass(frozen=True, slots=True)
class Completion:
    """The code, the state that came with it if any, and the URL as it was pasted."""

    code: str = field(repr=False)
    state: str | None = field(repr=False)
    callback_url: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Found:
    code: str | None
    state: str | None
    url: SplitResult | None


def read_completion(callback_url: str | None, code: str | None) -> Completion:
    """Get one code out of a pasted callback URL, a code, or both.

    The code field may hold a URL, `code=…&state=…`, or the bare code with brackets, back quotes,
    punctuation and line breaks around it, as chats and people leave them.

    Raises:
        CapabilityError: `capability_auth_callback_invalid`; the callback is no URL with a host.
        CapabilityAuthFlowDenied: the callback says that access was denied.
        CapabilityAuthFlowInvalid: the callback reports another error.
        CapabilityError: `capability_auth_code_conflict`; callback and code disagree.
        CapabilityError: `capability_auth_code_missing`; there is no code anywhere.
    """
    from_url = None
    if callback_url is not None and callback_url.strip():
        from_url = _from_url(_unwrapped(callback_url))
        if from_url.code is None:
            raise _no_code("the callback URL holds no code (invalid input)")
    typed = None
    if code is not None and code.strip():
        typed = _from_text(code)
    if from_url is not None and typed is not None and typed.code is not None:
        if from_url.code != typed.code:
            raise CapabilityError(
                "the callback URL and the code disagree", code="capability_auth_code_conflict"
            )
        if from_url.state and typed.state and from_url.state != typed.state:
            raise _wrong_state("the callback URL and the code disagree on the state")
    found = from_url or typed
    if found is None or found.code is None or len(found.code) > CODE_LIMIT_CHARS:
        raise _no_code("there is no usable code (invalid input)")
    state = found.state or (typed.state if typed is not None else None)
    raw = _unwrapped(callback_url) if from_url is not None and callback_url else None
    if raw is None and typed is not None and typed.url is not None and code is not None:
        raw = _unwrapped(code)
    return Completion(found.code, state, raw)


def require_state(completion: Completion, expected: str | None, *, stateless_allowed: bool) -> None:
    """Refuse a state that is not the flow's, or a missing one where it must be there.

    Raises:
        CapabilityError: `capability_auth_state_mismatch`; in both cases.
    """
    if expected is None:
        return
    if completion.state is None:
        if completion.callback_url is not None or not stateless_allowed:
            raise _wrong_state("the callback brings no state, and one is expected")
        return
    if not hmac.compare_digest(completion.state.encode(), expected.encode()):
        raise _wrong_state("the state of the callback is not the flow's")


def require_redirect(completion: Completion, redirect_uri: str | None) -> None:
    """Refuse a callback to another place than the provider declared.

    Raises:
        CapabilityError: `capability_auth_callback_invalid`; scheme, host or path differ.
    """
    if redirect_uri is None or completion.callback_url is None:
        return
    if _place(urlsplit(completion.callback_url)) != _place(urlsplit(redirect_uri)):
        raise _wrong_callback("the callback URL is not this flow's")


def _no_code(message: str) -> CapabilityError:
    return CapabilityError(message, code="capability_auth_code_missing")


def _wrong_state(message: str) -> CapabilityError:
    return CapabilityError(message, code="capability_auth_state_mismatch")


def _wrong_callback(message: str) -> CapabilityError:
    return CapabilityError(message, code="capability_auth_callback_invalid")


def _place(url: SplitResult) -> tuple[str, str, str]:
    return (url.scheme.lower(), url.netloc.lower(), url.path.rstrip("/"))


def _from_url(text: str) -> _Found:
    try:
        url = urlsplit(text) if len(text) <= CALLBACK_LIMIT_CHARS else None
        host = None if url is None else url.hostname
    except ValueError:
        url, host = None, None
    if url is None or not url.scheme or not host:
        raise _wrong_callback("the callback is no URL with a scheme and a host")
    # Some providers answer in the fragment; the query wins where both speak.
    found = {**_fields(url.fragment), **_fields(url.query)}
    _require_no_error(found)
    return _Found(found.get("code"), found.get("state"), url)


def _from_text(text: str) -> _Found:
    trimmed = _unwrapped(text)
    if len(trimmed) > CALLBACK_LIMIT_CHARS:
        raise _no_code("there is no usable code (invalid input)")
    if _SCHEME.match(trimmed):
        return _from_url(trimmed)
    if _CODE_FIELD.search(trimmed):
        found = _fields(trimmed.lstrip("?#&"))
        _require_no_error(found)
        return _Found(found.get("code"), found.get("state"), None)
    return _Found("".join(trimmed.split()) or None, None, None)


def _fields(query: str) -> dict[str, str]:
    try:
        parsed = parse_qs(query, max_num_fields=_FIELDS_LIMIT)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    for name, values in parsed.items():
        if len(values) > 1 and name in {"code", "state"}:
            # Twice is one too many: the host and the provider might each take another one.
            raise _wrong_callback(f"the callback holds {name} more than once")
        found[name.strip()] = values[0].strip()
    return {name: value for name, value in found.items() if value}


def _require_no_error(found: dict[str, str]) -> None:
    error = found.get("error")
    if error == "access_denied":
        raise CapabilityAuthFlowDenied("the person or the provider denied access")
    if error is not None:
        raise CapabilityAuthFlowInvalid("the provider reported an error instead of a code")


def _unwrapped(text: str) -> str:
    """Take brackets, back quotes and trailing punctuation away, layer by layer."""
    text = text.strip()
    while text:
        before = text
        if len(text) > 1 and _PAIRS.get(text[0]) == text[-1]:
            text = text[1:-1].strip()
        text = text.rstrip(".,;").rstrip()
        if text == before:
            break
    return text

"""The bridge-v1 envelope: one JSON object to a capability bridge, one back.

The host writes requests and reads answers; a bridge written in Python does the reverse with the
same module. Whatever breaks a rule is an `EnvelopeViolation`, whose text names the rule and never
quotes what the other side sent (SC-BRG-10).
"""

from __future__ import annotations

import re
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.wire.strictjson import NotJson, decode_json, encode_json
from kaged.wire.value_count import holds_more_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from kaged.base.jsonvalue import JsonObject, JsonValue

BRIDGE_VERSION = 1
ENVELOPE_LIMIT_BYTES = 4 * 1024 * 1024  # SC-AMB-13
ENVELOPE_VALUES = 20_000  # they are read by the slower of the two decoders, for its unique keys
ENVELOPE_DEPTH = 64
ID_LIMIT_CHARS = 128
ERROR_CODE_LIMIT_CHARS = 64
ERROR_MESSAGE_LIMIT_CHARS = 300  # SC-AMB-14
BACKEND_UNAVAILABLE = "capability_backend_unavailable"

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ERROR_CODE = re.compile(r"capability_[a-z0-9_]+")
# SC-BRG-14: what a caller is goes in the signed token, never beside it.
_IDENTITY_MEMBERS = frozenset(
    {
        "context",
        "user_id",
        "chat_id",
        "chat_type",
        "chat_title",
        "provider",
        "thread_id",
        "session_key",
        "source_username",
        "source_display_name",
    }
)


class BridgeMethod(StrEnum):
    """What the host asks of a bridge. The last three came with the second generation and later."""

    DEFINITIONS = "definitions"
    AUTH_BEGIN = "auth_begin"
    AUTH_COMPLETE = "auth_complete"
    INVOKE = "invoke"
    AUTH_POLL = "auth_poll"
    AUTH_REVOKE = "auth_revoke"
    AUTH_SUBMIT = "auth_submit"


class EnvelopeRule(StrEnum):
    """The rules of the envelope, in the order in which they are checked."""

    SIZE = "size"  # over 4 MiB, or too many values
    JSON = "json"  # not one JSON value in UTF-8, or NaN, a key twice, nested too deep
    OBJECT = "object"
    VERSION = "version"  # the integer 1
    ID = "id"  # the id of the request
    NAMESPACE = "namespace"
    METHOD = "method"
    PARAMS = "params"
    ONE_OUTCOME = "one_outcome"  # exactly one of result and error
    RESULT = "result"  # an object
    ERROR = "error"  # an object with a code and a message that are not blank
    RESULT_MEMBER = "result_member"  # a member of the result that its method does not allow


class EnvelopeViolation(KagedError):
    """The other side broke a rule of bridge-v1; nothing it sent may be used."""

    code = "capability_invalid_output"

    def __init__(self, rule: EnvelopeRule, member: str | None = None) -> None:
        where = f"{rule}: {member}" if member else str(rule)
        super().__init__(f"the bridge envelope breaks a rule ({where})", rule=rule.value)
        self.rule = rule
        self.member = member


@dataclass(frozen=True, slots=True)
class BridgeRequest:
    """A request as it goes to a bridge."""

    id: str
    namespace: str
    method: str
    params: JsonObject


@dataclass(frozen=True, slots=True)
class BridgeResult:
    """A bridge's success."""

    id: str
    result: JsonObject


@dataclass(frozen=True, slots=True)
class BridgeFailure:
    """A bridge's error, made safe to pass on but for secrets in the message.

    `code` is the bridge's own when it has the form `capability_…`, otherwise
    `capability_backend_unavailable` with the bridge's word in `original_code` for the audit.
    `whole_code` and `whole_message` are what it said, not cut, for whoever looks for secrets: the
    beginning of one is found by nobody.
    """

    id: str
    code: str
    message: str
    original_code: str | None = None
    whole_code: str = field(default="", repr=False, compare=False)
    whole_message: str = field(default="", repr=False, compare=False)


BridgeAnswer: TypeAlias = BridgeResult | BridgeFailure


def bridge_request_id(random_bits: Callable[[int], int]) -> str:
    """Make the id of a request: `cap_bridge_` and 64 random bits in hex."""
    return f"cap_bridge_{random_bits(64):016x}"


def encode_request(request: BridgeRequest) -> bytes:
    """Return the bytes for a bridge's standard input: ASCII, one line, no line feed.

    Raises:
        ValueError: params hold raw identity (SC-BRG-14) or the namespace is malformed; both are
            mistakes of ours.
        Unsendable: params hold something that is not JSON.
    """
    raw_identity = _IDENTITY_MEMBERS.intersection(request.params)
    if raw_identity:
        raise ValueError(f"bridge params carry raw identity: {', '.join(sorted(raw_identity))}")
    if _NAMESPACE.fullmatch(request.namespace) is None:
        raise ValueError(f"not a namespace: {request.namespace!r}")
    return encode_json(
        {
            "version": BRIDGE_VERSION,
            "id": request.id,
            "namespace": request.namespace,
            "method": request.method,
            "params": request.params,
        },
        ascii_only=True,
    )


def parse_request(data: bytes) -> BridgeRequest:
    """Read a request, as a bridge does. Extra members are ignored.

    Raises:
        EnvelopeViolation: it breaks a rule.
    """
    envelope = _open_envelope(data)
    request_id = _request_id(envelope)
    namespace = envelope.get("namespace")
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        _violation(EnvelopeRule.NAMESPACE)
    method = envelope.get("method")
    if not isinstance(method, str) or not method:
        _violation(EnvelopeRule.METHOD)
    params = envelope.get("params")
    if not isinstance(params, dict):
        _violation(EnvelopeRule.PARAMS)
    return BridgeRequest(request_id, namespace, method, params)


def encode_result(request_id: str, result: JsonObject) -> bytes:
    """Return a bridge's success answer."""
    return encode_json(
        {"version": BRIDGE_VERSION, "id": request_id, "result": result}, ascii_only=True
    )


def encode_failure(request_id: str, code: str, message: str) -> bytes:
    """Return a bridge's error answer, to be written with exit status 0."""
    error: JsonObject = {"code": code, "message": message}
    return encode_json(
        {"version": BRIDGE_VERSION, "id": request_id, "error": error}, ascii_only=True
    )


def parse_answer(data: bytes, request_id: str | None) -> BridgeAnswer:
    """Read an answer. Extra members are ignored, so that later bridges keep working (SC-AMB-16).

    `request_id` is the id that the answer must carry; None takes any and leaves the matching to
    the caller, for a bridge that answers several requests over one pipe.

    Raises:
        EnvelopeViolation: it breaks a rule.
    """
    envelope = _open_envelope(data)
    answer_id = _request_id(envelope)
    if request_id is not None and answer_id != request_id:
        _violation(EnvelopeRule.ID)
    if ("result" in envelope) == ("error" in envelope):
        _violation(EnvelopeRule.ONE_OUTCOME)
    if "error" in envelope:
        return _failure(answer_id, envelope["error"])
    result = envelope["result"]
    if not isinstance(result, dict):
        _violation(EnvelopeRule.RESULT)
    return BridgeResult(answer_id, result)


def safe_error_message(text: str) -> str:
    """Cut a bridge's error text to one line of at most 300 characters without control characters.

    Secrets are not looked for here; that is the work of whoever knows them.
    """
    # Enough for the limit unless most of it is blanks, and a bound on the work.
    start = text[: 8 * ERROR_MESSAGE_LIMIT_CHARS]
    printable = "".join(char if char.isprintable() else " " for char in start)
    return " ".join(printable.split())[:ERROR_MESSAGE_LIMIT_CHARS]


def _open_envelope(data: bytes) -> JsonObject:
    if len(data) > ENVELOPE_LIMIT_BYTES or holds_more_values(data, ENVELOPE_VALUES):
        _violation(EnvelopeRule.SIZE)
    try:
        value = decode_json(data, max_depth=ENVELOPE_DEPTH, unique_keys=True)
    except NotJson:
        _violation(EnvelopeRule.JSON)
    if not isinstance(value, dict):
        _violation(EnvelopeRule.OBJECT)
    version = value.get("version")
    if type(version) is not int or version != BRIDGE_VERSION:  # True and 1.0 equal 1 to Python
        _violation(EnvelopeRule.VERSION)
    return value


def _request_id(envelope: JsonObject) -> str:
    value = envelope.get("id")
    if not isinstance(value, str) or not 0 < len(value) <= ID_LIMIT_CHARS:
        _violation(EnvelopeRule.ID)
    return value


def _failure(answer_id: str, error: JsonValue) -> BridgeFailure:
    if not isinstance(error, dict):
        _violation(EnvelopeRule.ERROR)
    code = error.get("code")
    message = error.get("message")
    if not isinstance(code, str) or not (shown := safe_error_message(code)):
        _violation(EnvelopeRule.ERROR, "code")
    if not isinstance(message, str) or not (text := safe_error_message(message)):
        _violation(EnvelopeRule.ERROR, "message")
    if len(code) <= ERROR_CODE_LIMIT_CHARS and _ERROR_CODE.fullmatch(code):
        return BridgeFailure(answer_id, code, text, None, code, message)
    original = shown[:ERROR_CODE_LIMIT_CHARS]
    return BridgeFailure(answer_id, BACKEND_UNAVAILABLE, text, original, code, message)


def _violation(rule: EnvelopeRule, member: str | None = None) -> NoReturn:
    raise EnvelopeViolation(rule, member)

"""Error numbers on the wire: the twelve constants, the map from our codes, and the way back.

Inside the host an error is a `KagedError` with a string code; a number exists only on the wire.
This module is the one table between the two.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from kaged.base.errors import KagedError

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject, JsonValue


class ErrorCode(IntEnum):
    """The twelve numbers with a fixed meaning (PH-ERR-01 to PH-ERR-12)."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    PLUGIN_ERROR = -32000
    CAPABILITY_DENIED = -32001
    NOT_INITIALIZED = -32002
    STORAGE_ACCESS_DENIED = -32003
    CONFIG_INVALID = -32004
    RESOURCE_BUSY = -32005
    NOT_APPLICABLE = -32006

    @property
    def wire_name(self) -> str:
        """Return the name the specification uses, such as `resource_busy`."""
        return self.name.lower()


PLUGIN_RANGE = range(-32099, -31999)  # PH-ERR-13: -32099 to -32000, both included

_STANDARD = frozenset(
    {
        ErrorCode.PARSE_ERROR,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.METHOD_NOT_FOUND,
        ErrorCode.INVALID_PARAMS,
        ErrorCode.INTERNAL_ERROR,
    }
)
_KAGED = frozenset(ErrorCode) - _STANDARD


class NumberClass(StrEnum):
    """Who gives an error number its meaning."""

    STANDARD = "standard"  # JSON-RPC 2.0
    KAGED = "kaged"  # the seven of the plugin contract
    PLUGIN = "plugin"  # the rest of -32099 to -32000
    RESERVED = "reserved"  # below -32099 and not standard: kept for kaged
    APPLICATION = "application"  # everything above -32000


def number_class(number: int) -> NumberClass:
    """Return who gives this number its meaning (PH-AMB-41)."""
    if number in _STANDARD:
        return NumberClass.STANDARD
    if number in _KAGED:
        return NumberClass.KAGED
    if number in PLUGIN_RANGE:
        return NumberClass.PLUGIN
    return NumberClass.RESERVED if number < PLUGIN_RANGE.start else NumberClass.APPLICATION


def is_reserved(number: int) -> bool:
    """Return whether a plugin may not use this number; the host passes it on with a warning."""
    return number_class(number) is NumberClass.RESERVED


def is_retryable(number: int) -> bool:
    """Return whether the caller should try again later; the host itself never does (PH-ERR-11)."""
    return number == ErrorCode.RESOURCE_BUSY


# AT-DISP-08: codes with a number of their own. `parse_error` is absent on purpose: as a code it is
# a tool's complaint about a source file, not JSON-RPC's about a message.
_NUMBERS = MappingProxyType(
    {
        "internal": ErrorCode.INTERNAL_ERROR,
        "internal_error": ErrorCode.INTERNAL_ERROR,
        "invalid_request": ErrorCode.INVALID_REQUEST,
        "method_not_found": ErrorCode.METHOD_NOT_FOUND,
        "tool_not_found": ErrorCode.METHOD_NOT_FOUND,
        "invalid_params": ErrorCode.INVALID_PARAMS,
        "invalid_context_token": ErrorCode.INVALID_PARAMS,  # SC-AMB-05
        "capability_denied": ErrorCode.CAPABILITY_DENIED,
        "seccomp_insufficient": ErrorCode.CAPABILITY_DENIED,
        "dap_requires_relaxed_seccomp": ErrorCode.CAPABILITY_DENIED,
        "principal_scope_violation": ErrorCode.CAPABILITY_DENIED,
        "not_initialized": ErrorCode.NOT_INITIALIZED,
        "storage_access_denied": ErrorCode.STORAGE_ACCESS_DENIED,
        "config_invalid": ErrorCode.CONFIG_INVALID,
        "resource_busy": ErrorCode.RESOURCE_BUSY,
        "not_applicable": ErrorCode.NOT_APPLICABLE,
        "plugin_error": ErrorCode.PLUGIN_ERROR,
    }
)
_SERVICE_PREFIX = "capability_"


def number_of(code: str) -> ErrorCode:
    """Return the wire number of one of our string codes.

    Codes of service capabilities (`capability_…`, but not `capability_denied`) travel as
    internal errors that carry their code in the message and data (SC-AMB-06); every other code
    without a number of its own is a domain error, -32000 (AT-DISP-08).
    """
    number = _NUMBERS.get(code)
    if number is not None:
        return number
    if code.startswith(_SERVICE_PREFIX):
        return ErrorCode.INTERNAL_ERROR
    return ErrorCode.PLUGIN_ERROR


def number_of_error(error: KagedError) -> int:
    """Return the number to send for an error: its own when it came off the wire with one."""
    return error.number if isinstance(error, RpcError) else number_of(error.code)


class RpcError(KagedError):
    """A JSON-RPC error with its number, message and data unchanged (PH-METH-24).

    Raised to a caller whose request was answered with an error, and by a handler that wants to
    answer with one. `detail` is the wire's `data` member.
    """

    code = "rpc_error"
    default_number: ClassVar[int] = ErrorCode.PLUGIN_ERROR

    def __init__(
        self, message: str, *, number: int | None = None, detail: JsonValue = None
    ) -> None:
        super().__init__(message)
        self.number = self.default_number if number is None else number
        self.detail: JsonValue = detail

    @property
    def retryable(self) -> bool:
        """Return whether the caller should try again later."""
        return is_retryable(self.number)

    @property
    def reserved(self) -> bool:
        """Return whether the number is one the sender may not use, which deserves a warning."""
        return is_reserved(self.number)


class RpcParseError(RpcError):
    """The other side could not read our message as JSON."""

    code = "rpc_parse_error"
    default_number: ClassVar[int] = ErrorCode.PARSE_ERROR


class InvalidRequest(RpcError):
    """The message was JSON but not a JSON-RPC 2.0 message, or it was a batch."""

    code = "invalid_request"
    default_number: ClassVar[int] = ErrorCode.INVALID_REQUEST


class MethodNotFound(RpcError):
    """The other side has no such method."""

    code = "method_not_found"
    default_number: ClassVar[int] = ErrorCode.METHOD_NOT_FOUND


class InvalidParams(RpcError):
    """The method exists, the parameters are wrong."""

    code = "invalid_params"
    default_number: ClassVar[int] = ErrorCode.INVALID_PARAMS


class InternalError(RpcError):
    """The other side failed with an internal error, or did not answer in time."""

    code = "internal_error"
    default_number: ClassVar[int] = ErrorCode.INTERNAL_ERROR


class PluginError(RpcError):
    """An error of the plugin's own domain; `detail` should say more.

    Any number but a reserved one may be given.

    Raises:
        ReservedNumber: `number` is kept for kaged (PH-ERR-14).
    """

    code = "plugin_error"
    default_number: ClassVar[int] = ErrorCode.PLUGIN_ERROR

    def __init__(
        self, message: str, *, number: int | None = None, detail: JsonValue = None
    ) -> None:
        super().__init__(message, number=number, detail=detail)
        if self.reserved:
            raise ReservedNumber(
                f"error number {number} is reserved for kaged",
                fix=f"use a number from {PLUGIN_RANGE.start} to {PLUGIN_RANGE.stop - 1}",
                number=number,
            )


class RpcCapabilityDenied(RpcError):
    """The operation needs a capability that the caller does not have (`capability_denied`)."""

    code = "capability_denied"
    default_number: ClassVar[int] = ErrorCode.CAPABILITY_DENIED


class NotInitialized(RpcError):
    """The message came before the handshake was complete."""

    code = "not_initialized"
    default_number: ClassVar[int] = ErrorCode.NOT_INITIALIZED


class StorageAccessDenied(RpcError):
    """A storage operation outside the plugin's own schema, or without the capability."""

    code = "storage_access_denied"
    default_number: ClassVar[int] = ErrorCode.STORAGE_ACCESS_DENIED


class ConfigInvalid(RpcError):
    """The plugin refused a `config.update`."""

    code = "config_invalid"
    default_number: ClassVar[int] = ErrorCode.CONFIG_INVALID


class ResourceBusy(RpcError):
    """The other side is busy; trying again later may work."""

    code = "resource_busy"
    default_number: ClassVar[int] = ErrorCode.RESOURCE_BUSY


class NotApplicable(RpcError):
    """The method exists but makes no sense in this context."""

    code = "not_applicable"
    default_number: ClassVar[int] = ErrorCode.NOT_APPLICABLE


class ReservedNumber(KagedError):
    """A plugin tried to use an error number that is kept for kaged."""

    code = "reserved_error_number"


_CLASSES: MappingProxyType[int, type[RpcError]] = MappingProxyType(
    {
        kind.default_number: kind
        for kind in (
            RpcParseError,
            InvalidRequest,
            MethodNotFound,
            InvalidParams,
            InternalError,
            PluginError,
            RpcCapabilityDenied,
            NotInitialized,
            StorageAccessDenied,
            ConfigInvalid,
            ResourceBusy,
            NotApplicable,
        )
    }
)


def error_class(number: int) -> type[RpcError]:
    """Return the class that stands for a number; RpcError for numbers without a fixed meaning."""
    return _CLASSES.get(number, RpcError)


def rpc_error(number: int, message: str, detail: JsonValue = None) -> RpcError:
    """Turn an error answer into the exception for its caller, all three values unchanged."""
    return error_class(number)(message, number=number, detail=detail)


def service_error_data(
    code: str,
    *,
    retryable: bool,
    request_id: str | None = None,
    retry_after_s: float | None = None,
) -> JsonObject:
    """Return the `data` member of a service-capability error (SC-AMB-06)."""
    data: JsonObject = {"code": code, "retryable": retryable}
    if request_id is not None:
        data["request_id"] = request_id
    if retry_after_s is not None:
        data["retry_after_seconds"] = retry_after_s
    return data


def service_error_message(code: str, text: str) -> str:
    """Return the message of a service-capability error: the code comes first (SC-AMB-06)."""
    return f"{code}: {text}"

"""`Bridge`: account capabilities for kaged (and other hosts of bridge-v1) in a few lines.

    bridge = Bridge()
    box = bridge.capability("notes.box", "A person's notes.", sensitive=True)

    @box.operation("list", "List the notes.")
    def list_notes(call: BridgeCall) -> dict: ...

    bridge.run()

The context token of every call is checked before a handler sees it, so that `call.user_id` is
always somebody whom the host vouches for.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, BinaryIO, TypeAlias

from kaged.base.clock import Clock, SystemClock
from kaged.base.jsonvalue import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.wire.envelope import (
    ENVELOPE_LIMIT_BYTES,
    BridgeMethod,
    BridgeRequest,
    EnvelopeViolation,
    encode_failure,
    encode_result,
    parse_request,
)
from kaged.wire.framing import Unsendable
from kaged.wire.sidecar_identity import SIDECAR_VARIABLE
from kaged.wire.token_keys import SECRET_VARIABLE, TokenKeyInvalid, parse_key
from kaged.wire.tokens import TokenRejected, VerifiedToken, bridge_audience, verify_token

Handler: TypeAlias = "Callable[[BridgeCall], dict[str, Any]]"

_NO_ENVELOPE = 2
_METHODS = frozenset(BridgeMethod)


class BridgeError(Exception):
    """What went wrong, for the caller. `code` has the form `capability_…`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NotLinked(BridgeError):
    """The account of this person is not known here."""

    def __init__(self, message: str = "no such account is linked") -> None:
        super().__init__("capability_auth_required", message)


class InvalidInput(BridgeError):
    """The input makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__("capability_invalid_input", message)


@dataclass(frozen=True)
class BridgeCall:
    """One call: for whom, and with what. Everything about the person is out of the checked token.

    `input` is the operation's input; `params` are all parameters of the method as they came, for
    `auth_begin`, `auth_complete` and the like. `credentials` is what the person typed in to link
    the account, if its flow had fields.
    """

    user_id: str
    token: VerifiedToken
    capability_id: str
    params: Mapping[str, Any]
    operation: str = ""
    input: Mapping[str, Any] = field(default_factory=dict[str, Any])
    account_ref: str | None = None
    credentials: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    idempotency_key: str | None = None

    @property
    def chat_type(self) -> str | None:
        """The kind of chat that the call comes from."""
        return self.token.routing.chat_type

    @property
    def code(self) -> str | None:
        """The code that the person brought back, whichever generation of host sends it."""
        found = self.params.get("authorization_code") or self.params.get("code")
        return found if isinstance(found, str) else None


class Capability:
    """One capability: its operations, and how accounts are linked."""

    def __init__(self, id_: str, description: str, **details: Any) -> None:
        self.id = id_
        self._description = description
        self._details = details
        self._operations: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, Handler] = {}
        self._methods: dict[str, Handler] = {}

    def operation(
        self,
        name: str,
        description: str,
        *,
        requires_auth: bool = True,
        mutating: bool = False,
        input_schema: JsonObject | None = None,
        output_schema: JsonObject | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare an operation; its handler takes a `BridgeCall` and gives the output."""

        def declare(handler: Handler) -> Handler:
            self._operations[name] = {
                "name": name,
                "description": description,
                "requires_auth": requires_auth,
                "mutating": mutating,
                "input_schema": input_schema or {},
                "output_schema": output_schema or {},
            }
            self._handlers[name] = handler
            return handler

        return declare

    def auth_begin(self, handler: Handler) -> Handler:
        """Declare how linking an account starts; returns `auth_url` and what else is known."""
        return self._declare(BridgeMethod.AUTH_BEGIN, handler)

    def auth_complete(self, handler: Handler) -> Handler:
        """Declare how linking an account ends; returns the `account_ref`."""
        return self._declare(BridgeMethod.AUTH_COMPLETE, handler)

    def auth_poll(self, handler: Handler) -> Handler:
        """Declare how a device flow is asked about; returns its `status`."""
        return self._declare(BridgeMethod.AUTH_POLL, handler)

    def auth_submit(self, handler: Handler) -> Handler:
        """Declare what happens with the `values` of a flow's `fields`; returns `account_ref`."""
        return self._declare(BridgeMethod.AUTH_SUBMIT, handler)

    def auth_revoke(self, handler: Handler) -> Handler:
        """Declare what happens when an account is unlinked."""
        return self._declare(BridgeMethod.AUTH_REVOKE, handler)

    def definition(self) -> JsonObject:
        """Describe it as hosts want it."""
        return {
            "id": self.id,
            "description": self._description,
            **self._details,
            "operations": list(self._operations.values()),
        }

    def handler(self, method: str, operation: str) -> Handler:
        """Find who answers. Raises InvalidInput."""
        found = (
            self._handlers.get(operation)
            if method == BridgeMethod.INVOKE
            else self._methods.get(method)
        )
        if found is None:
            raise InvalidInput(f"{self.id} does not support {operation or method}")
        return found

    def _declare(self, method: BridgeMethod, handler: Handler) -> Handler:
        self._methods[method] = handler
        return handler


class Bridge:
    """A bridge program. Declare capabilities, then `run`.

    With `persistent` the host may keep one process for many calls, one after the other.
    """

    def __init__(self, *, persistent: bool = False, clock: Clock | None = None) -> None:
        self._persistent = persistent
        self._clock = clock or SystemClock()
        self._capabilities: dict[str, Capability] = {}

    def capability(
        self,
        id_: str,
        description: str,
        *,
        sensitive: bool = False,
        allowed_chat_types: Iterable[str] = (),
    ) -> Capability:
        """Declare a capability; its id is `<namespace>.<name>`."""
        made = Capability(
            id_, description, sensitive=sensitive, allowed_chat_types=list(allowed_chat_types)
        )
        self._capabilities[id_] = made
        return made

    def run(self, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> int:
        """Answer the requests on standard input until it ends; returns the exit status.

        A program that the host started as a sidecar answers on loopback instead.
        """
        if stdin is None and SIDECAR_VARIABLE in os.environ:
            from kaged.sdk.sidecar import serve_until_end_of_input  # noqa: PLC0415 - heavy

            serve_until_end_of_input(self._answer_body, self._clock)
        incoming, outgoing = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
        while line := incoming.readline(ENVELOPE_LIMIT_BYTES + 1):
            if not line.strip():
                continue
            try:
                request = parse_request(line)
            except EnvelopeViolation as error:
                # Without an id there is no answer that the host could match.
                sys.stderr.write(f"{error}\n")
                return _NO_ENVELOPE
            outgoing.write(self.answer(request) + b"\n")
            outgoing.flush()
        return 0

    def _answer_body(self, body: bytes) -> bytes:
        try:
            request = parse_request(body)
        except EnvelopeViolation as error:
            raise ValueError(error.message) from None
        return self.answer(request)

    def answer(self, request: BridgeRequest) -> bytes:
        """Answer one request; every failure becomes an error envelope."""
        try:
            return encode_result(request.id, self._result(request))
        except BridgeError as error:
            return encode_failure(request.id, error.code, error.message)
        except (TokenRejected, TokenKeyInvalid) as error:
            return encode_failure(request.id, "capability_access_denied", error.message)
        except Unsendable as error:
            return encode_failure(request.id, "capability_backend_unavailable", error.message)
        except Exception:  # noqa: BLE001 - the edge: what a handler trips over stays on stderr
            traceback.print_exc()
            text = "the bridge failed; its log has more"
            return encode_failure(request.id, "capability_backend_unavailable", text)

    def _result(self, request: BridgeRequest) -> JsonObject:
        if request.method == BridgeMethod.DEFINITIONS:
            offered: JsonObject = {
                "definitions": [one.definition() for one in self._capabilities.values()]
            }
            return {**offered, "features": ["persistent"]} if self._persistent else offered
        if request.method not in _METHODS:
            raise InvalidInput(f"unknown method {request.method[:64]}")
        params = request.params
        token = verify_token(
            parse_key(os.environ.get(SECRET_VARIABLE, "")),
            params.get("context_token"),
            clock=self._clock,
            audience=bridge_audience(request.namespace),
        )
        capability = self._capabilities.get(str(params.get("capability_id")))
        if capability is None:
            raise InvalidInput("there is no such capability here")
        operation = str(params.get("operation") or "")
        given, account, key, typed = (
            params.get(name)
            for name in ("input_data", "account_ref", "idempotency_key", "credentials")
        )
        call = BridgeCall(
            user_id=token.effective_user_id,
            token=token,
            capability_id=capability.id,
            params=params,
            operation=operation,
            input=given if isinstance(given, dict) else {},
            account_ref=account if isinstance(account, str) else None,
            credentials=typed if isinstance(typed, dict) else {},
            idempotency_key=key if isinstance(key, str) else None,
        )
        result = capability.handler(request.method, operation)(call)
        return {"output": result} if request.method == BridgeMethod.INVOKE else result

"""What a provider of account capabilities is: definitions, calls, results, `CapabilityProvider`.

A provider never sees a context token. Each call carries the verified `CapabilityCallContext` and,
for providers that run inside the daemon, handles to the vault and to stored state that are already
bound to one user and one capability: there is no argument with which to ask for another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

FlowType: TypeAlias = Literal["authorization_code", "device_code"]
Confirm: TypeAlias = Literal["never", "chat", "always"]


@dataclass(frozen=True, slots=True)
class CapabilityOperation:
    """One thing that can be done with an account.

    `confirm` says whether the account's owner must agree before it runs: `always`, or in chats
    other than private ones (`chat`). `repeatable` says that repeating it after an unknown outcome
    does no harm. Texts under a property whose output schema has `x-free-text: true` (mail bodies)
    are not searched for things that merely look like secrets.
    """

    name: str
    description: str
    requires_auth: bool = True
    mutating: bool = False
    input_schema: JsonObject = field(default_factory=dict)
    output_schema: JsonObject = field(default_factory=dict)
    confirm: Confirm = "never"
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class CapabilityDefinition:
    """One capability and who may use it; an empty `allowed_chat_types` means all chats.

    A sensitive capability without a list of its own is for private chats only.
    """

    id: str
    description: str
    sensitive: bool = False
    allowed_chat_types: list[str] = field(default_factory=list)
    operations: dict[str, CapabilityOperation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CapabilityCallContext:
    """Who calls and from where, out of a verified token; only the user is always known."""

    user_id: str
    chat_id: str | None = None
    chat_type: str | None = None
    provider: str | None = None
    thread_id: str | None = None
    session_key: str | None = None
    source_username: str | None = None
    source_display_name: str | None = None


class CredentialHandle(Protocol):
    """The credential of one (user, capability, account), and of no other.

    During `auth_complete` and `auth_poll` the account has no name yet: what is put then is kept
    in memory and stored under the `account_ref` of the result, or dropped if linking fails.
    """

    async def get(self) -> JsonObject | None:
        """Read it, or return None when there is none."""
        ...

    async def put(self, payload: JsonObject) -> None:
        """Store it, encrypted, in place of what was there."""
        ...

    async def delete(self) -> bool:
        """Forget it; returns whether there was one."""
        ...

    async def refresh(
        self, stale: JsonObject, renew: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        """Replace `stale` by what `renew` makes of it, once however many ask at the same time.

        When somebody has renewed it meanwhile, that one is given and `renew` is not called. If
        `renew` raises, the stored credential stays as it is.
        """
        ...


class StateHandle(Protocol):
    """What a provider remembers about one user of one capability, apart from credentials.

    With `chat=True` an entry belongs to the verified chat of the call as well.
    """

    async def get(self, name: str, *, chat: bool = False) -> JsonObject | None:
        """Read an entry."""
        ...

    async def put(self, name: str, value: JsonObject, *, chat: bool = False) -> None:
        """Write an entry."""
        ...

    async def delete(self, name: str, *, chat: bool = False) -> bool:
        """Remove an entry; returns whether it was there."""
        ...


class FlowStarter(NamedTuple):
    """Who began a flow: an agent of a project, or with `in_person` its person, without an agent.

    `agent` and `project` are names for people; None where they are not known any more.
    """

    agent: str | None = None
    project: str | None = None
    in_person: bool = False


@dataclass(frozen=True, slots=True)
class AuthBeginCall:
    """A person wants to link an account; `begun_by` says through which agent, if any."""

    capability_id: str
    account_hint: str | None
    context: CapabilityCallContext
    begun_by: tuple[FlowStarter, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthField:
    """Something that a person may type in to complete a flow; a secret one is never shown."""

    name: str
    label: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class CapabilityAuthBeginResult:
    """Where the person goes to agree, and what the host keeps until they come back.

    `flow_state` never leaves the host and is stored encrypted: the PKCE verifier and the device
    code belong there. With `expected_callback_state` a callback must bring that state; a bare code
    without a state is then accepted only with `uses_pkce` (or the operator's
    `allow_stateless_code`). With `fields` a person may fill these in themselves instead of opening
    the page (`SubmittingProvider`); no agent ever can. A `redirect_uri` binds the scheme, host and
    path of callbacks.
    """

    auth_url: str
    expires_at_ms: int | None = None
    flow_state: JsonObject = field(default_factory=dict, repr=False)
    flow_type: FlowType = "authorization_code"
    user_code: str | None = None
    poll_interval_s: int | None = None
    expected_callback_state: str | None = field(default=None, repr=False)
    uses_pkce: bool = False
    redirect_uri: str | None = None
    fields: tuple[AuthField, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthCompleteCall:
    """The person came back with a code; the host has already checked the state."""

    capability_id: str
    account_hint: str | None
    flow_state: JsonObject = field(repr=False)
    authorization_code: str = field(repr=False)
    raw_callback_url: str | None = field(repr=False)
    state: str | None = field(repr=False)
    context: CapabilityCallContext
    credentials: CredentialHandle


@dataclass(frozen=True, slots=True)
class AuthSubmitCall:
    """The person filled in the fields of a flow; exactly those, all of them texts."""

    capability_id: str
    account_hint: str | None
    flow_state: JsonObject = field(repr=False)
    values: dict[str, str] = field(repr=False)
    context: CapabilityCallContext
    credentials: CredentialHandle


@dataclass(frozen=True, slots=True)
class CapabilityAuthCompleteResult:
    """The account that is linked now.

    `credential_material` may hold opaque references only; secrets go to the credential handle.
    Of `metadata` only `account_name` and `account_email` are ever shown.
    """

    account_ref: str
    credential_material: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuthPollCall:
    """Has the person agreed on their other device?"""

    capability_id: str
    account_hint: str | None
    flow_state: JsonObject = field(repr=False)
    context: CapabilityCallContext
    credentials: CredentialHandle


@dataclass(frozen=True, slots=True)
class CapabilityAuthPending:
    """Not yet; ask again after so many seconds."""

    retry_after_s: int | None = None


AuthPollResult: TypeAlias = CapabilityAuthCompleteResult | CapabilityAuthPending


@dataclass(frozen=True, slots=True)
class AuthResumeCall:
    """A flow that was begun earlier, perhaps by another daemon, and has not ended."""

    auth_url: str
    expires_at_ms: int
    flow_state: JsonObject = field(repr=False)
    capability_id: str
    user_id: str
    begun_by: tuple[FlowStarter, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthRevokeCall:
    """The person takes an account back; the host forgets it whatever the provider answers."""

    capability_id: str
    account_ref: str
    context: CapabilityCallContext
    credentials: CredentialHandle


@dataclass(frozen=True, slots=True)
class AuthCheckCall:
    """Does this account still work?"""

    capability_id: str
    account_ref: str
    context: CapabilityCallContext
    credentials: CredentialHandle


class InvokeCall(NamedTuple):
    """One operation, after every gate has passed and the input has matched its schema.

    `account_ref` is None for an operation without auth; `credentials` is None then, too. A named
    tuple and not a dataclass, because making it is part of every call.
    """

    capability_id: str
    operation: str
    input_data: JsonObject
    account_ref: str | None
    idempotency_key: str | None
    context: CapabilityCallContext
    credentials: CredentialHandle | None
    state: StateHandle


@runtime_checkable
class CapabilityProvider(Protocol):
    """An integration that owns one namespace of capabilities.

    Methods raise `CapabilityError` to tell the caller what went wrong. Anything else they raise
    becomes `capability_backend_unavailable`, and its text goes nowhere but the operator's log.
    They run under the provider's timeout.
    """

    @property
    def namespace(self) -> str:
        """The part before the dot in all of its ids."""
        ...

    async def definitions(self) -> list[CapabilityDefinition]:
        """Return everything it offers; called at registration and on an operator's refresh."""
        ...

    async def auth_begin(self, call: AuthBeginCall) -> CapabilityAuthBeginResult:
        """Start linking an account."""
        ...

    async def auth_complete(self, call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        """Finish linking an account; called once per code."""
        ...

    async def invoke(self, call: InvokeCall) -> JsonObject:
        """Run one operation and return its output."""
        ...


@runtime_checkable
class PollingProvider(Protocol):
    """A provider with device-code flows."""

    async def auth_poll(self, call: AuthPollCall) -> AuthPollResult:
        """Ask whether the person has agreed."""
        ...


@runtime_checkable
class SubmittingProvider(Protocol):
    """A provider whose flows can be completed with fields that a person fills in."""

    async def auth_submit(self, call: AuthSubmitCall) -> CapabilityAuthCompleteResult:
        """Finish linking an account with what was typed in."""
        ...


@runtime_checkable
class ResumingProvider(Protocol):
    """A provider with pages of its own, which can end before the host's flow does."""

    async def auth_resume(self, call: AuthResumeCall) -> bool:
        """Open the page of a flow again if a restart closed it; False when the flow is dead."""
        ...

    def auth_cancel(self, call: AuthResumeCall) -> None:
        """Close the page of a flow that its person has given up."""
        ...


@runtime_checkable
class RevokingProvider(Protocol):
    """A provider that can tell its upstream that an account link has ended."""

    async def auth_revoke(self, call: AuthRevokeCall) -> bool:
        """End the link upstream; False when it cannot."""
        ...


@runtime_checkable
class CheckingProvider(Protocol):
    """A provider that can test an account without doing anything with it."""

    async def auth_check(self, call: AuthCheckCall) -> bool:
        """Use an account for nothing; False when there is no way to. Raises as `invoke`."""
        ...


@runtime_checkable
class ReachingProvider(Protocol):
    """A provider that can test whether its service answers at all."""

    async def reach(self) -> None:
        """Ask the service for anything, without an account. Raises CapabilityError."""
        ...


@runtime_checkable
class ClosingProvider(Protocol):
    """A provider that holds connections or processes."""

    async def close(self) -> None:
        """End them. Safe to call twice."""
        ...

"""What a plugin is told about the request besides the payload: `GlobalContext`, `PluginContext`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field

from kaged.pipeline.isolation import isolate_payload
from kaged.pipeline.shapes import PlainRecord

MAX_CONTENT_TYPE_CHARS = 200


class UserContext(BaseModel):
    """The authenticated user, as far as the host knows them."""

    model_config = ConfigDict(defer_build=True)

    user_id: str
    email: str | None = None
    full_name: str | None = None
    is_admin: bool = False
    groups: list[str] = Field(default_factory=list)
    roles: list[str] = Field(default_factory=list)
    team_id: str | None = None
    teams: list[str] | None = None
    department: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    auth_method: str | None = None
    authenticated_at: datetime | None = None
    service_account: str | None = None
    delegation_chain: list[str] = Field(default_factory=list)


class GlobalContext(PlainRecord):
    """The request as all plugins of a chain share it; each plugin works on its own copy.

    After a plugin that may write shared state, `state` and `metadata` of its copy are carried over.
    """

    shape: ClassVar[tuple[str, ...]] = (
        "request_id",
        "user",
        "user_context",
        "tenant_id",
        "server_id",
        "content_type",
        "state",
        "metadata",
    )
    __slots__ = shape

    def __init__(
        self,
        request_id: str,
        user: str | dict[str, Any] | None = None,
        user_context: UserContext | None = None,
        tenant_id: str | None = None,
        server_id: str | None = None,
        content_type: str | None = None,
        state: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        if content_type is not None:
            if len(content_type) > MAX_CONTENT_TYPE_CHARS:
                raise ValueError(f"content_type is longer than {MAX_CONTENT_TYPE_CHARS} characters")
            if not content_type.isprintable():
                raise ValueError("content_type has characters that cannot be printed")
        self.request_id = request_id
        self.user = user
        self.user_context = user_context
        self.tenant_id = tenant_id
        self.server_id = server_id
        self.content_type = content_type
        self.state: dict[str, Any] = {} if state is None else state
        self.metadata: dict[str, Any] = {} if metadata is None else metadata

    def for_plugin(self, with_user: bool) -> GlobalContext:
        """Copy this for one plugin, without user and identity unless `with_user`."""
        twin = _new(GlobalContext)
        twin.request_id = self.request_id
        twin.tenant_id = self.tenant_id
        twin.server_id = self.server_id
        twin.content_type = self.content_type
        twin.state = self.state.copy()
        twin.metadata = self.metadata.copy()
        twin.user = twin.user_context = None
        if with_user:
            user = self.user
            twin.user = user if user is None or type(user) is str else isolate_payload(user)
            identity = self.user_context
            twin.user_context = None if identity is None else isolate_payload(identity)
        return twin


class PluginContext(PlainRecord):
    """One plugin's memory for the length of a request; `state` and `metadata` are its own.

    `global_context` is the plugin's copy of the shared context, made when it is first looked at.
    """

    __slots__ = ("_shared", "metadata", "state")
    shape: ClassVar[tuple[str, ...]] = ("state", "global_context", "metadata")

    def __init__(
        self,
        global_context: GlobalContext,
        state: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        **_unknown: Any,  # such as `plugin_id`; the published class ignores them too
    ) -> None:
        _set_shared(self, global_context)
        self.state: dict[str, Any] = {} if state is None else state
        self.metadata: dict[str, Any] = {} if metadata is None else metadata

    @property
    def global_context(self) -> GlobalContext:
        """Return the plugin's copy of what all plugins of the request share."""
        shared = _get_shared(self)
        if type(shared) is tuple:
            shared = shared[0].for_plugin(shared[1])
            _set_shared(self, shared)
        return cast("GlobalContext", shared)

    @global_context.setter
    def global_context(self, value: GlobalContext) -> None:
        if not isinstance(value, GlobalContext):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are plugins
            raise TypeError("global_context is a GlobalContext")
        _set_shared(self, value)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass the type checker

        def __getattr__(self, name: str) -> dict[str, Any]:
            # Most plugins keep nothing; the dicts come into being when somebody looks.
            if name in _MEMORY:
                memory: dict[str, Any] = {}
                setattr(self, name, memory)
                return memory
            raise AttributeError(f"'PluginContext' object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (PluginContext, (self.global_context, self.state, self.metadata))

    @property
    def user_context(self) -> UserContext | None:
        """Return the structured identity of the user, when there is one."""
        return self.global_context.user_context

    @property
    def user_email(self) -> str | None:
        """Return the user's address: from the identity, else from `global_context.user`."""
        identity = self.global_context.user_context
        if identity is not None:
            return identity.email
        user = self.global_context.user
        if isinstance(user, dict):
            email = user.get("email")
            return email if isinstance(email, str) else None
        return user

    @property
    def user_groups(self) -> list[str]:
        """Return the user's groups; empty without an identity."""
        identity = self.global_context.user_context
        return [] if identity is None else identity.groups

    def get_state(self, key: str, default: Any = None) -> Any:
        """Read a value that this plugin set earlier in the request."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Keep a value for this plugin's later hooks of the same request."""
        self.state[key] = value

    async def cleanup(self) -> None:
        """Forget state and metadata."""
        self.state.clear()
        self.metadata.clear()

    def is_empty(self) -> bool:
        """Return whether nothing is kept here."""
        return not (self.state or self.metadata or self.global_context.state)


_MEMORY = frozenset({"state", "metadata"})
_new = object.__new__
_place = vars(PluginContext)["_shared"]
_get_shared: Callable[[PluginContext], GlobalContext | tuple[GlobalContext, bool]] = _place.__get__
_set_shared: Callable[[PluginContext, object], None] = _place.__set__
returned = _get_shared
"""Gives the plugin's copy of the shared context; a tuple while it has not looked at it."""
lend: Callable[[PluginContext, tuple[GlobalContext, bool]], None] = _set_shared
"""Lets a context copy the shared one when its plugin looks at it; with the user, or without."""
# The place has no name from here on: a plugin cannot reach the host's own context through it.
type.__delattr__(PluginContext, "_shared")

PluginContextTable: TypeAlias = dict[str, PluginContext]
"""Contexts by request id + plugin id; pass the table of a pre hook into the post hook."""

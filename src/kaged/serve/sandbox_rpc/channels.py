"""`SandboxChannels`: how people's accounts come within reach of exactly one command at a time.

A command of a caged agent whose cage has the capability `services` gets, for as long as it runs:
a token for the person that its session acts for, a listener on its own loopback that accepts that
token and no other, and `ash-sb` to use them with. Nobody else gets any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import JsonValue
from kaged.cage.net import LoopbackService
from kaged.kernel.policy import CagePolicy
from kaged.serve.sandbox_rpc import RpcLimits, SandboxMethods, SandboxRpc
from kaged.serve.sandbox_rpc.ash_program import AshProgram
from kaged.services.caller import ContextTokens
from kaged.toolbox.shell import Attachment, ShellCommand
from kaged.wire.tokens import (
    MAX_LIFETIME_S,
    SANDBOX_TTL_S,
    TOKEN_VARIABLE,
    RoutingClaims,
    TokenReason,
    TokenRejected,
)

GRANT: Final = "services"
"""The named capability of a cage that lets its commands ask for people's accounts."""

RPC_HOST: Final = "127.0.0.1"
# Below 1024: no program inside a cage can take it, nor what would be there without us.
RPC_PORT: Final = 731
_TOKEN_SPARE_S: Final = 30

Post = Callable[[AuditEvent], None]


class SandboxChannels:
    """Says what each caged command gets on top; `attach` is asked by the shell's launcher."""

    def __init__(
        self,
        methods: SandboxMethods,
        tokens: ContextTokens,
        program: Callable[[], AshProgram],
        *,
        post: Post,
        limits: RpcLimits | None = None,
    ) -> None:
        self._methods = methods
        self._tokens = tokens
        self._make_program = program
        self._program: AshProgram | None = None
        self._post = post
        self._limits = limits

    def attach(self, policy: CagePolicy, command: ShellCommand) -> Attachment:
        """Return the token, the channel and the program that a command may have.

        Without a known person there is no token and no channel: `ash-sb` then says so.
        """
        if GRANT not in policy.capabilities:
            return Attachment()
        if self._program is None:
            self._program = self._make_program()
        program = self._program
        token = self._mint(command)
        if token is None:
            return Attachment(mounts=program.mounts, path_dirs=program.path_dirs)
        rpc = SandboxRpc(self._methods, token, self._refuse, self._limits)
        return Attachment(
            env=(
                (TOKEN_VARIABLE, token),
                ("ASH_RPC_HOST", RPC_HOST),
                ("ASH_RPC_PORT", str(RPC_PORT)),
            ),
            mounts=program.mounts,
            path_dirs=program.path_dirs,
            services=(LoopbackService(RPC_PORT, rpc.serve),),
        )

    def _mint(self, command: ShellCommand) -> str | None:
        identity = command.identity
        if identity is None or identity.person_id is None:
            return None
        # As long as the command may run, if that is longer than usual.
        wanted_s = int(command.timeout_s) + _TOKEN_SPARE_S
        skill = command.skill
        return self._tokens.mint(
            identity.person_id,
            routing=RoutingClaims(
                chat_id=identity.chat_id,
                chat_type=identity.chat_type,
                provider=identity.provider,
                session_key=command.session_id or None,
                project_id=command.project_id or None,
                thread_id=identity.thread_id,
                source_username=identity.source_username,
                source_display_name=identity.source_display_name,
            ),
            skill=None if skill is None else skill.name,
            caps=None if skill is None else skill.capabilities,
            ttl_s=min(max(SANDBOX_TTL_S, wanted_s), MAX_LIFETIME_S),
            actor=replace(identity, agent_path=command.caller or None),
        )

    def _refuse(self, method: str, token: JsonValue) -> TokenRejected:
        """Return why a token that is not the cage's own is refused, and record it."""
        try:
            self._tokens.verify(token)
        except TokenRejected as error:
            rejected = error
        else:  # somebody's good token, in a cage that it was not made for
            rejected = TokenRejected(TokenReason.CLAIMS)
        data: dict[str, JsonValue] = {"reason": rejected.reason.value, "method": method[:128]}
        try:
            self._post(AuditEvent("capability_token_rejected", data))
        except AuditUnavailable:
            # Refused all the same; the gap itself becomes part of the record.
            return rejected
        return rejected

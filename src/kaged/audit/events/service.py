"""Events of the service capabilities: who did what with which account, never with which secret."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

_SCOPE = "user_id:str? chat_id:str? chat_type:str? skill:str? token_id:str?"
_SCOPE_MORE = "provider:str? thread_id:str? session_key:str? gate:str? identity_fields:list"
_INVOKE_MORE = (
    f"{_SCOPE_MORE} capability.namespace:str idempotency_key_hash:str? input_hmac:str? "
    "output_bytes:int? bridge.exit_code:int? bridge.error_code:str? "
    "share_id:str? account_owner:str?"
)
_AUTH = (
    f"request_id:str outcome:str {_SCOPE} capability.id:str? flow_id:str? account_ref:str? "
    "duration_ms:num error.code:str?"
)
_SHARE = "user_id:str capability.id:str account_ref:str share_id:str person:str? team:str?"


SERVICE_CAPABILITIES = Chapter(
    "Service capabilities",
    (
        event(
            "capability_invoke_intent",
            "A mutating operation is about to run; written before the provider is called.",
            f"request_id:str {_SCOPE} capability.id:str operation:str mutating:bool "
            "account_ref:str? "
            "input_keys:list",
            _INVOKE_MORE,
            gates=True,
        ),
        event(
            "capability_invoke",
            "An operation ended; exactly one per call. Outcome `ok`, `denied`, `error` or "
            "`replayed`.",
            f"request_id:str outcome:str {_SCOPE} capability.id:str? operation:str? mutating:bool? "
            "account_ref:str? input_keys:list duration_ms:num error.code:str?",
            _INVOKE_MORE,
        ),
        event("capability_auth_begin", "An account link was begun.", _AUTH, _SCOPE_MORE),
        event("capability_auth_complete", "An account link was completed.", _AUTH, _SCOPE_MORE),
        event(
            "capability_auth_poll", "A waiting account link was asked about.", _AUTH, _SCOPE_MORE
        ),
        event("capability_auth_cancel", "An account link was given up.", _AUTH, _SCOPE_MORE),
        event("capability_auth_revoke", "An account link was taken back.", _AUTH, _SCOPE_MORE),
        event(
            "capability_output_rejected",
            "A provider's answer contained something like a credential; only its place is kept.",
            "request_id:str capability.id:str operation:str path:str",
            f"{_SCOPE} {_SCOPE_MORE} rule:str masked:bool",
        ),
        event(
            "capability_provider_registered",
            "A provider offers its capabilities.",
            "provider:str capabilities:list",
            "kind:str caged:bool",
        ),
        event(
            "capability_provider_unavailable",
            "A provider cannot be used.",
            "provider:str reason:str",
            "capabilities:list detail:cut",
        ),
        event(
            "capability_account_revoked",
            "The operator revoked a person's account.",
            "user_id:str capability.id:str account_ref:str provider_revoked:bool",
        ),
        event(
            "capability_account_shared",
            "The owner of an account shared it with a person or a team, for these operations.",
            f"{_SHARE} operations:list expires_at:str?",
        ),
        event(
            "capability_account_unshared",
            "A share ended: `ended` by its owner or the operator, `account revoked`, or "
            "`linked anew`, when the account may be another one now.",
            f"{_SHARE} reason:str",
        ),
        event(
            "capability_shared_use",
            "Somebody is about to use a shared account; written before the provider is called. "
            "`user_id` is its owner.",
            f"{_SHARE} used_by:str operation:str",
            gates=True,
        ),
        event(
            "capability_account_status",
            "A linked account was found to work, or not to, by a call or a test.",
            "user_id:str capability.id:str account_ref:str status:str before:str",
        ),
        event(
            "capability_consent_decided",
            "A person consented to an operation (`confirmed`) or refused it (`denied`).",
            "plan_id:str user_id:str capability.id:str operation:str outcome:str",
        ),
        event(
            "credential.set",
            "The operator set the value of a credential at the gate; the value is not written.",
            "name:str source:str",
        ),
        event(
            "credential.removed",
            "The operator had the value of a credential at the gate forgotten.",
            "name:str",
        ),
        event(
            "credential.tested",
            "The operator had a credential's host asked; `refused` is the gate's rule, if it sent "
            "nothing.",
            "name:str host:str status:int? refused:str?",
        ),
        event(
            "credential.not_granted",
            "A cage asks for a credential that the operator has not granted it, and is without.",
            "name:str what:str rule:str reason:cut",
        ),
        event(
            "credential.used",
            "A caged process sent a request to a bound host; `name` is the credential that it "
            "carried, if any. Equal ones are counted.",
            "what:str host:str port:int method:str path:str outcome:str",
            "cage_id:str? name:str count:int",
        ),
        event(
            "credential.refused",
            "A request of a caged process to a bound host was not sent: a placeholder where none "
            "may stand, or a request that no rule allows.",
            "what:str host:str port:int rule:str reason:cut",
            "cage_id:str? method:str path:str name:str count:int",
        ),
        event(
            "credential.client_refused_certificate",
            "A caged process did not accept the gate's certificate for a bound host.",
            "what:str host:str port:int reason:cut",
            "cage_id:str? count:int",
        ),
        event(
            "capability_vault_rotated",
            "Every credential was encrypted anew with a fresh key.",
            "records:int flows:int",
        ),
        event(
            "capability_token_rejected",
            "A context token was refused: `missing`, `format`, `decode`, `header`, `signature`, "
            "`claims`.",
            "reason:str method:str",
            "error.code:str",
        ),
    ),
)

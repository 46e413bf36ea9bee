"""What `config.toml` and the environment say about providers and keys, as services take it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from kaged.audit import AuditLog
from kaged.base.log import get_logger
from kaged.config.providers import Provider, ProviderType, RateName
from kaged.services.known_secrets import configured_secrets
from kaged.services.limits import DEFAULT_RATES, NO_LIMITS, RateRules
from kaged.services.registry import ProviderKind, ProviderRules
from kaged.services.secret_search import SecretForms
from kaged.wire.token_keys import SECRET_VARIABLE, TokenKey, parse_key

_log = get_logger("kaged.services")


def signing_key(environ: Mapping[str, str], audit: AuditLog) -> TokenKey:
    """Return the signing key: the operator's, or a random one that dies with this process."""
    text = environ.get(SECRET_VARIABLE, "")
    if text.strip():
        audit.redactor.learn(text.strip())
        return parse_key(text)
    _log.info("services.random_key", note=f"{SECRET_VARIABLE} is not set; tokens end with me")
    return TokenKey(secrets.token_bytes(32))


def provider_kind(one: Provider) -> ProviderKind:
    """Return what kind of provider the operator configured."""
    match one.section.type:
        case ProviderType.BRIDGE:
            return "bridge"
        case ProviderType.SIDECAR:
            return "sidecar"
        case _:
            return "first-party"


def provider_rules(one: Provider) -> ProviderRules:
    """Return what the operator allows of a provider."""
    section = one.section
    return ProviderRules(
        timeout_s=one.timeout_s,
        allow=section.allow,
        deny=section.deny,
        confirm=section.confirm,
        strict_output=section.strict_output,
        allow_stateless_code=section.allow_stateless_code,
        same_address=section.same_address,
        secrets=SecretForms.of(
            configured_secrets({name: value.reveal() for name, value in one.env.items()})
        ),
    )


def rate_rules(one: Provider) -> RateRules:
    """Return how often a provider may be asked."""
    section = one.section
    base = DEFAULT_RATES if section.rate is RateName.DEFAULT else NO_LIMITS
    if not section.quota_per_day:
        return base
    return RateRules(base.invoke, base.mutating, base.auth_begin, section.quota_per_day)

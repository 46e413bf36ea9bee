"""What looks like a secret: by the name of its key, by the shape of its text."""

from __future__ import annotations

import re
from functools import lru_cache

REDACTED = "[redacted]"

# Folded key names whose values never reach the log.
SECRET_KEYS = frozenset({
    "access_token", "api_key", "apikey", "auth", "auth_code", "authorization",
    "authorization_code", "bearer", "client_assertion", "client_secret", "code_verifier",
    "context_token", "cookie", "cookies", "credential", "credentials", "csrf_token",
    "device_code", "id_token", "launch_token", "passphrase", "passwd", "password", "private_key",
    "proxy_authorization", "pwd", "refresh_token", "secret", "secret_key", "secrets",
    "session_cookie", "session_token", "set_cookie", "signing_key", "ssh_key", "system_config",
    "token", "vault_ref", "www_authenticate", "x_api_key",
})  # fmt: skip
_SECRET_ENDINGS = (
    "_access_key",
    "_api_key",
    "_apikey",
    "_cookie",
    "_credential",
    "_credentials",
    "_passphrase",
    "_passwd",
    "_password",
    "_private_key",
    "_secret",
    "_secret_key",
    "_token",
)
# Tokens that move a reader through pages are no secrets.
_HARMLESS_ENDINGS = (
    "page_token",
    "next_token",
    "sync_token",
    "continuation_token",
    "cursor_token",
    "delta_token",
)
ENV_KEYS = frozenset({"env", "envs", "environ", "environment", "env_vars"})

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FOLD = re.compile(r"[\s\-.]+")

_NAMES = (
    r"(?:access|refresh|id|auth|bearer|session|context|csrf|bot|api|app)?[_-]?token"
    r"|api[_-]?key|secret(?:[_-]?key)?|client[_-]?secret|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|pass(?:word|wd|phrase)|pwd|credentials?|authorization|cookie"
)
# Assignments in free text: PASSWORD=x, "token": "x", Authorization: Bearer x, --api-key x.
_ASSIGNED = re.compile(
    rf"(?i)((?:{_NAMES})[\"']?\s*[=:]\s*|--[a-z0-9-]*(?:{_NAMES})\s+)"
    r"(?:(?:bearer|basic|token)\s+)?(?!\[redacted\])(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"')}]+)"
)
_SHAPES = re.compile(
    r"-----BEGIN[A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+){0,2}"
    r"|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}|\bxox[abeprs]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"
    r"|\bnpm_[A-Za-z0-9]{30,}|\bhf_[A-Za-z0-9]{30,}|\bpypi-[\w-]{30,}"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    re.DOTALL,
)
# Reading every string with the two patterns above would cost more than writing the row. Each of
# them needs one of these pieces, which a search for plain pieces rules out in half a microsecond.
_SHAPE_HINT = re.compile(
    r"-----BEGIN|earer\s|asic\s|eyJ|gh[pousr]_|github_pat_|glpat-|sk-|xox|xapp-|AKIA|ASIA|AIza"
    r"|ya29\.|npm_|hf_|pypi-|://"
)
_NAME_HINT = re.compile(r"(?i)token|key|secret|pass|pwd|credential|authorization|cookie")


@lru_cache(maxsize=4096)
def fold_key(key: str) -> str:
    """Write a key the one way that keys are compared in: trimmed, lower case, `_` between words."""
    return _FOLD.sub("_", _CAMEL.sub("_", key.strip())).lower()


@lru_cache(maxsize=4096)
def is_secret_key(key: str) -> bool:
    """Return whether the value behind this key is a credential, whatever it looks like."""
    folded = fold_key(key)
    if folded in SECRET_KEYS:
        return True
    return folded.endswith(_SECRET_ENDINGS) and not folded.endswith(_HARMLESS_ENDINGS)


def mask_secrets(text: str) -> str:
    """Take what has the shape of a credential out of a text, leaving the rest readable."""
    if _SHAPE_HINT.search(text):
        text = _SHAPES.sub(REDACTED, text)
    if ("=" in text or ":" in text or "--" in text) and _NAME_HINT.search(text):
        text = _ASSIGNED.sub(rf"\1{REDACTED}", text)
    return text

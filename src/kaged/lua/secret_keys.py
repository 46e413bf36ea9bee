"""`kage.crypto` with keys: what a script's worker has no library for. Pure functions over bytes."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject
from kaged.lua.errors import ScriptCallRefused
from kaged.lua.values import from_bytes, to_bytes

# SEQUENCE, version 0, the object id of Ed25519, and an octet string of 34 bytes with the seed.
_ED25519_PREFIX: Final = bytes.fromhex("302e020100300506032b657004220420")
_SEED_BYTES: Final = 32
_KEY_BYTES: Final = 32
_IV_BYTES: Final = 12
_TAG_BYTES: Final = 16


def use_key(params: JsonObject) -> str:
    """Do what a script asks for. Raises ScriptCallRefused; no input is ever in its words."""
    name = params.get("name")
    if name == "aes256gcm_decrypt":
        return from_bytes(_decrypted(params))
    if name == "ed25519_sign":
        return from_bytes(_signed(params))
    raise ScriptCallRefused("kage.crypto: unknown function")


def _decrypted(params: JsonObject) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - few scripts use it
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    who = "kage.crypto.aes256gcm_decrypt"
    key, iv, tag = (_bytes(params, one) for one in ("key", "iv", "tag"))
    for what, value, size in (
        ("key", key, _KEY_BYTES),
        ("iv", iv, _IV_BYTES),
        ("tag", tag, _TAG_BYTES),
    ):
        if len(value) != size:
            raise ScriptCallRefused(f"{who}: {what} must be {size} bytes")
    try:
        return AESGCM(key).decrypt(iv, _bytes(params, "data") + tag, _bytes(params, "aad"))
    except InvalidTag:
        raise ScriptCallRefused(f"{who}: failed") from None


def _signed(params: JsonObject) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - as above
        Ed25519PrivateKey,
    )

    key = _bytes(params, "key")
    if len(key) != len(_ED25519_PREFIX) + _SEED_BYTES or not key.startswith(_ED25519_PREFIX):
        raise ScriptCallRefused("kage.crypto.ed25519_sign: invalid private key")
    private = Ed25519PrivateKey.from_private_bytes(key[len(_ED25519_PREFIX) :])
    return private.sign(_bytes(params, "data"))


def _bytes(params: JsonObject, name: str) -> bytes:
    value = params.get(name)
    if not isinstance(value, str):
        raise ScriptCallRefused(f"kage.crypto: {name} must be a string")
    return to_bytes(value)

"""`CallSecrets`: the secrets that a call must not let out, and where a text holds one of them.

A text and a secret are compared in one form: lower case, one alphabet of base64, no backslashes and
no line breaks. So a secret is found in any letter case, quoted as JSON however often, and in lines
of mail. Base64 is searched for at its three offsets, and escapes of URLs, JSON and HTML are undone
first. Somebody who wants to carry a secret out can still cut it in pieces; this finds accidents and
the plain tricks.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable
from dataclasses import field
from typing import Final, Self
from urllib.parse import unquote_to_bytes

import msgspec

from kaged.audit.credentials import REDACTED, mask_secrets
from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.services.known_secrets import SHORTEST_CHARS, secret_texts
from kaged.wire.envelope import safe_error_message

WITHHELD: Final = "the provider's message held a secret and is withheld"
ROUNDS: Final = 4
"""How often escapes within escapes are undone."""
_LEFT_CHARS: Final = 4
"""How much folding may leave of a secret that held backslashes."""
_SCRUB_CHARS: Final = 4096

# Lower case; the URL alphabet of base64 is the standard one; a form writes a blank as a plus sign.
_FOLDED: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-_ ", b"abcdefghijklmnopqrstuvwxyz+/+")
_DROPPED: Final = b"\\\r\n"
_ESCAPED_RUN: Final = re.compile(rb"(?:\\+(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}))+")
_BREAKS: Final = re.compile(rb"\\{2,}[nr]")
_ESCAPED: Final = re.compile(rb"[ux]([0-9a-fA-F]{4}|[0-9a-fA-F]{2})")
# A reference for which nothing stands but letters may be the next field of a URL.
_HTML: Final = re.compile(rb"&(?:#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z]{2,8});?")


@dataclass(frozen=True, slots=True)
class SecretForms:
    """Some secrets and what to look for in a folded text; `exact` are those that folding ruins.

    `wide` are those with letters beyond ASCII, for texts of which those are folded, too.
    """

    texts: tuple[str, ...] = field(default=(), repr=False)
    needles: tuple[bytes, ...] = field(default=(), repr=False)
    exact: tuple[bytes, ...] = field(default=(), repr=False)
    wide: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the forms of these secrets; what is too short to be told from words is left out.

        Empty without any.
        """
        kept = tuple(dict.fromkeys(one for one in texts if len(one) >= SHORTEST_CHARS))
        needles: dict[bytes, None] = {}
        exact: list[bytes] = []
        wide: list[bytes] = []
        for text in kept:
            raw = text.encode("utf-8", "surrogatepass")
            needles.update(dict.fromkeys(_encoded(raw)))
            plain = _plain_forms(raw)
            needles.update(dict.fromkeys(plain))
            if not plain:
                exact.append(msgspec.json.encode(text)[1:-1])
            elif not text.isascii():
                cases = (text, text.upper())
                wide += (_fold_wide(_fold(one.encode("utf-8", "surrogatepass"))) for one in cases)
        return cls(kept, tuple(needles), tuple(exact), tuple(wide))

    def found_in(self, text: bytes, folded: Iterable[bytes], folded_wide: Iterable[bytes]) -> bool:
        """Return whether a text, or one of its folded forms, holds one of these secrets."""
        # `in` first asks whether bytes are a number, which doubles what it takes.
        return (
            any(text.find(one) >= 0 for one in self.exact)
            or any(one.find(needle) >= 0 for one in folded for needle in self.needles)
            or any(one.find(needle) >= 0 for one in folded_wide for needle in self.wide)
        )


NO_SECRETS: Final = SecretForms()


class CallSecrets:
    """What one call must not let out; it grows while the call runs.

    Credentials that are read, stored or renewed on the way are learned by their handles, so that
    results, errors and records are searched for what is secret when they leave.
    """

    __slots__ = ("_forms",)

    def __init__(self, *forms: SecretForms) -> None:
        self._forms = [one for one in forms if one.texts]

    def add(self, forms: SecretForms) -> None:
        """Look for these as well."""
        if forms.texts and not any(one is forms for one in self._forms):
            self._forms.append(forms)

    def learn(self, *texts: str) -> None:
        """Look for these texts as well."""
        self.add(SecretForms.of(texts))

    def learn_credential(self, payload: JsonValue) -> None:
        """Look for what is secret in a credential as well."""
        self.add(SecretForms.of(secret_texts(payload)))

    def found_in(self, text: bytes) -> bool:
        """Return whether a text, usually JSON, holds one of the secrets in any of the forms."""
        if not self._forms:
            return False
        folded = _all_folded(text)
        wide = [_fold_wide(one) for one in folded] if any(one.wide for one in self._forms) else []
        return any(one.found_in(text, folded, wide) for one in self._forms)

    def found_in_text(self, text: str) -> bool:
        """Return whether a text of no particular format holds one of them."""
        return bool(self._forms) and self.found_in(text.encode("utf-8", "surrogatepass"))

    def scrub(self, text: str) -> str:
        """Return an error text in one short line without what is, or looks like, a secret.

        Before it is cut: the beginning of a secret is not found any more. A text that holds one in
        other words than its own is withheld as a whole.
        """
        if self.found_in_text(text):
            known = sorted((one for forms in self._forms for one in forms.texts), key=len)
            pattern = "|".join(re.escape(one) for one in reversed(known))
            text = re.sub(pattern, REDACTED, text, flags=re.IGNORECASE)
            if self.found_in_text(text):
                return WITHHELD
        return safe_error_message(mask_secrets(text[:_SCRUB_CHARS]))


def _encoded(raw: bytes) -> set[bytes]:
    """Return a secret in hex, and in base64 at each offset, as folded texts have them."""
    return {raw.hex().encode(), *(_fold(_inner_base64(raw, offset)) for offset in range(3))}


def _plain_forms(raw: bytes) -> list[bytes]:
    """Return what becomes of a secret in a folded text.

    One that looks as if it held escapes is also looked for as a text in which those were undone
    together with others, and as one in which they were not.
    """
    first, *others = *_all_folded(raw), raw.translate(_FOLDED, _DROPPED)
    long = [one for one in others if len(one) >= SHORTEST_CHARS]
    return [*dict.fromkeys([first, *long] if len(first) >= _LEFT_CHARS else long)]


def _inner_base64(raw: bytes, offset: int) -> bytes:
    """Return the characters that stand for these bytes alone, `offset` bytes after a boundary."""
    whole = base64.b64encode(bytes(offset) + raw).rstrip(b"=")
    start = -(-offset * 8 // 6)  # the first character without a bit of what stands before
    return whole[start : (offset + len(raw)) * 8 // 6]


def _fold(text: bytes) -> bytes:
    if b"\\" in text:
        # JSON's own line breaks, which are all the backslashes of most texts. What is left of them
        # is dropped below, however many there are.
        if b"\\\\" in text:  # JSON in JSON: what is left of a run would escape what comes after it
            text = _BREAKS.sub(b"", text)
        text = text.replace(b"\\n", b"")
        if b"\\" in text:
            text = _ESCAPED_RUN.sub(_unescaped, text.replace(b"\\r", b""))
    return text.translate(_FOLDED, _DROPPED)


def _fold_wide(folded: bytes) -> bytes:
    """Return a folded text in which letters beyond ASCII have one case, too."""
    if folded.isascii():
        return folded
    text = folded.decode("utf-8", "surrogateescape").casefold()
    return text.encode("utf-8", "surrogateescape")


def _all_folded(text: bytes) -> list[bytes]:
    """Return a text folded as it is, and after each round of undoing escapes."""
    folded = _fold(text)
    found = [folded]
    for _ in range(ROUNDS):
        before = folded
        for undo in (_without_percents, _without_references):
            undone = undo(folded)
            if undone != folded:
                found.append(undone)
                folded = undone
        if folded is before:
            break
    return found


def _without_percents(folded: bytes) -> bytes:
    return _fold(unquote_to_bytes(folded)) if b"%" in folded else folded


def _without_references(folded: bytes) -> bytes:
    if b"&" not in folded or _HTML.search(folded) is None:
        return folded
    return _fold(_HTML.sub(lambda match: html.unescape(match[0].decode("ascii")).encode(), folded))


def _unescaped(match: re.Match[bytes]) -> bytes:
    units = b"".join(int(one, 16).to_bytes(2, "big") for one in _ESCAPED.findall(match[0]))
    return units.decode("utf-16-be", "replace").encode("utf-8", "replace")

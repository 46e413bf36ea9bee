"""Is it text? `mime_of_binary` looks at the first bytes of a file, not at its name alone."""

from __future__ import annotations

import mimetypes
from typing import Final

SNIFFED_BYTES: Final = 8192  # AT-FILE-14
FALLBACK_MIME: Final = "application/octet-stream"

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh91AY&SY", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-executable"),
    (b"\x00asm", "application/wasm"),
    (b"\xca\xfe\xba\xbe", "application/java-vm"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"OggS\x00", "audio/ogg"),
    (b"fLaC\x00", "audio/flac"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"\xff\xfe", "text/plain; charset=utf-16le"),
    (b"\xfe\xff", "text/plain; charset=utf-16be"),
)
_PACKED: Final = {".docx", ".xlsx", ".pptx", ".odt", ".ods", ".jar", ".epub", ".apk", ".whl"}


def mime_of_binary(start: bytes, name: str) -> str | None:
    """Return the type of a binary file from its first 8 KiB; None when the file is text."""
    found = next((mime for mark, mime in _SIGNATURES if start.startswith(mark)), None)
    if found is None and start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        found = "image/webp"
    if found == "application/zip" and name.endswith(tuple(_PACKED)):
        found = mimetypes.guess_type(name)[0] or found
    if found is not None and not (found.startswith("text/") and b"\0" not in start):
        return found
    if b"\0" not in start:
        return None
    guessed = mimetypes.guess_type(name)[0]
    # The bytes say that it is no text; a name that says otherwise is wrong.
    return guessed if guessed and not guessed.startswith("text/") else FALLBACK_MIME

"""Git configuration: the little that is read of it, and the file that exec cages are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

MAX_CONFIG_BYTES: Final = 256 * 1024
NEUTRAL_NAME: Final = "kaged"
NEUTRAL_EMAIL: Final = "kaged@localhost"
_SECTION: Final = re.compile(r'\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_LINE: Final = re.compile(r"([A-Za-z][\w-]*)\s*(?:=\s*(.*))?$")
_COPIED: Final = ("core.autocrlf", "core.eol", "core.safecrlf")


def read_settings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of one file, as `section.key` and value; includes are not followed."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    section = ""
    for raw in text.replace("\\\n", "").splitlines():
        line = raw.strip()
        found = _SECTION.match(line)
        if found is not None:
            section = found[1].lower()
            line = line[found.end() :].strip()
        if not line or line[0] in "#;":
            continue
        entry = _LINE.match(line)
        if entry is not None:
            yield f"{section}.{entry[1].lower()}", _value(entry[2])


def operator_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the operator's git identity, and how lines end; nothing else of their settings."""
    home = environ.get("HOME", "")
    wanted = {"user.name", "user.email", *_COPIED}
    files: list[Path] = []
    if home:
        config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        files = [Path(config, "git", "config"), Path(home, ".gitconfig")]
    found = {name: value for path in files for name, value in read_settings(path) if name in wanted}
    found.setdefault("user.name", NEUTRAL_NAME)
    found.setdefault("user.email", NEUTRAL_EMAIL)
    return found


def cage_config(settings: Mapping[str, str], safe: tuple[str, ...]) -> str:
    """Write the configuration of global scope that git finds in an exec cage."""
    lines = ["[safe]", *(f"\tdirectory = {_quoted(path)}" for path in safe)]
    for section in ("user", "core"):
        entries = [
            f"\t{name.partition('.')[2]} = {_quoted(value)}"
            for name, value in sorted(settings.items())
            if name.startswith(f"{section}.")
        ]
        if entries:
            lines += [f"[{section}]", *entries]
    return "\n".join(lines) + "\n"


def _value(raw: str | None) -> str:
    if raw is None:
        return "true"
    out: list[str] = []
    quoted = escaped = False
    for char in raw:
        if escaped:
            out.append({"n": "\n", "t": "\t"}.get(char, char))
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char in "#;" and not quoted:
            break
        else:
            out.append(char)
    return "".join(out).strip()


def _quoted(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'

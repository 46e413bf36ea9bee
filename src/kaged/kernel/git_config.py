"""Git's configuration files: which of their keys run commands, and how these are taken back. Pure.

The grammar is the one of git's own `config.c`, byte for byte; what does not parse is nobody's
configuration. A text is read as Latin-1, so that every byte keeps its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kaged.base.lazy_dataclass import dataclass

MAX_CONFIG_BYTES: Final = 1024 * 1024

_SECTIONS: Final = frozenset(
    (
        *("alias", "include", "includeif", "credential", "filter", "hook", "pager", "protocol"),
        *("man", "browser", "web", "instaweb", "guitool", "mergetool", "difftool", "sendemail"),
        *("trailer", "tar", "sequence", "interactive", "imap", "gpg", "gitcvs", "uploadarchive"),
    )
)
"""Sections in which nearly every key is, or chooses, a command or a further file."""

_NAMES: Final = frozenset(
    (
        *("textconv", "driver", "clean", "smudge", "process", "external", "hookspath"),
        *("fsmonitor", "gitproxy", "uploadpack", "receivepack", "vcs", "templatedir", "tunnel"),
        *("difffilter", "browser", "customtransfer", "standalonetransferagent", "smtpserver"),
    )
)
_ENDINGS: Final = (*("command", "cmd", "program", "helper", "editor", "pager", "askpass", "hook"),)
"""A key of any section, also one that a later git invents, whose name ends so, names a command."""

_LFS: Final = ("lfs.customtransfer.", "lfs.extension.")
_COMMAND_TRANSPORT: Final = re.compile(r"(?:^|\b)ext::", re.IGNORECASE)
_SPACE: Final = frozenset(" \t\n\r")


class MalformedGitConfig(ValueError):
    """The text is not what git would read as configuration."""


@dataclass(frozen=True, slots=True)
class GitSetting:
    """One setting: `key` in lower case but for a quoted subsection; where it stands in the text."""

    key: str
    value: str | None
    header: str
    start: int
    end: int


def parse_git_config(data: bytes) -> tuple[GitSetting, ...]:
    """Return the settings of a file in their order. Raises MalformedGitConfig."""
    if len(data) > MAX_CONFIG_BYTES:
        raise MalformedGitConfig("it is too large")
    return tuple(_Reader(data.decode("latin-1")).settings())


def bears_command(key: str, value: str | None, climb: int = 0) -> bool:
    """Return whether git, or a program that git starts, runs or loads what this setting names.

    `climb` is how many folders above the file still belong to the project: a work tree further up
    would let a checkout of the operator write there.
    """
    lower = key.lower()
    section, _, rest = lower.partition(".")
    name = rest.rpartition(".")[2]
    said = value or ""
    if section in _SECTIONS or name in _NAMES or name.endswith(_ENDINGS) or lower.startswith(_LFS):
        return True
    if section == "submodule" and name == "update":
        return said.lstrip().startswith("!")
    if lower == "core.worktree":
        ups = said.split("/").count("..")
        return said.startswith(("/", "~")) or ups > climb
    return bool(_COMMAND_TRANSPORT.search(said) or _COMMAND_TRANSPORT.search(lower))


def commands_of(settings: Sequence[GitSetting], climb: int = 0) -> tuple[GitSetting, ...]:
    """Return those settings that bear a command."""
    return tuple(one for one in settings if bears_command(one.key, one.value, climb))


def new_commands(new: bytes, old: bytes, climb: int = 0) -> tuple[str, ...] | None:
    """Return the command-bearing keys that differ between two texts, or None when none do.

    A text that does not parse differs in everything: its one key is `unreadable`.
    """
    if new == old:
        return None
    try:
        now = _said(new, climb)
    except MalformedGitConfig:
        return ("unreadable",)
    try:
        before = _said(old, climb)
    except MalformedGitConfig:
        before = ()
    if now == before:
        return None
    changed = {key for key, _ in set(now) ^ set(before)} or {key for key, _ in now}
    return tuple(sorted(changed))


def take_back_commands(new: bytes, old: bytes, climb: int = 0) -> bytes:
    """Return the new text with exactly the old one's command-bearing settings.

    What is harmless in the new text stays. One that does not parse is replaced by the old text.
    """
    try:
        settings = parse_git_config(new)
    except MalformedGitConfig:
        return old
    text = new.decode("latin-1")
    for one in reversed(commands_of(settings, climb)):
        text = text[: one.start] + text[one.end :]
    try:
        kept = commands_of(parse_git_config(old), climb)
    except MalformedGitConfig:
        kept = ()
    before = old.decode("latin-1")
    if kept and text and not text.endswith("\n"):
        text += "\n"
    for one in kept:
        text += f"{one.header}\n\t{before[one.start : one.end]}\n"
    return text.encode("latin-1")


def _said(data: bytes, climb: int) -> tuple[tuple[str, str | None], ...]:
    return tuple((one.key, one.value) for one in commands_of(parse_git_config(data), climb))


class _Reader:
    """Git's own way through a configuration file, one character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 3 if text.startswith("\xef\xbb\xbf") else 0  # a byte order mark
        self._settings: list[GitSetting] = []

    def settings(self) -> list[GitSetting]:
        section: str | None = None
        header = ""
        while (char := self._next()) is not None:
            if char in _SPACE:
                continue
            if char in "#;":
                self._skip_line()
            elif char == "[":
                begin = self._at - 1
                section = self._section()
                header = self._text[begin : self._at]
            elif section is not None and char.isascii() and char.isalpha():
                self._setting(section, header)
            else:
                raise MalformedGitConfig(f"unexpected character at {self._at - 1}")
        return self._settings

    def _next(self) -> str | None:
        if self._at >= len(self._text):
            return None
        char = self._text[self._at]
        self._at += 1
        if char == "\r" and self._text[self._at : self._at + 1] == "\n":
            self._at += 1
            return "\n"
        return char

    def _skip_line(self) -> None:
        while self._next() not in {"\n", None}:
            pass

    def _section(self) -> str:
        name = ""
        while (char := self._next()) is not None and char != "]":
            if char in _SPACE:
                return f"{name}.{self._subsection(char)}"
            if not (char.isascii() and (char.isalnum() or char in "-.")):
                break
            name += char.lower()
        if char != "]" or not name:
            raise MalformedGitConfig("a section's name is not closed")
        return name

    def _subsection(self, char: str | None) -> str:
        while char in _SPACE and char != "\n":
            char = self._next()
        if char != '"':
            raise MalformedGitConfig("a subsection's name is not quoted")
        name = ""
        while (char := self._next()) != '"':
            if char == "\\":
                char = self._next()
            if char in {None, "\n"}:
                raise MalformedGitConfig("a subsection's name is not closed")
            name += char or ""
        if self._next() != "]":
            raise MalformedGitConfig("a section's name is not closed")
        return name

    def _setting(self, section: str, header: str) -> None:
        start = self._at - 1
        name = self._text[start].lower()
        while (
            (char := self._next()) is not None
            and char.isascii()
            and (char.isalnum() or char == "-")
        ):
            name += char.lower()
        while char in {" ", "\t"}:
            char = self._next()
        if char in {None, "\n"}:
            value = None
        elif char == "=":
            value = self._value()
        else:
            raise MalformedGitConfig(f"the key {name} has no value")
        end = self._at
        while end > start and self._text[end - 1] in "\r\n":
            end -= 1
        self._settings.append(GitSetting(f"{section}.{name}", value, header, start, end))

    def _value(self) -> str:
        said: list[str] = []
        quoted = comment = False
        kept = 0  # what follows is white space so far, and goes when nothing comes after it
        while (char := self._next()) is not None and char != "\n":
            if comment:
                continue
            if char in _SPACE and not quoted:
                if said:
                    said.append(char)
                continue
            if not quoted and char in "#;":
                comment = True
                continue
            if char == "\\":
                char = self._next()
                if char == "\n":
                    continue
                if char is None or char not in 'tbn\\"':
                    raise MalformedGitConfig("a value has an escape that git does not know")
                char = {"t": "\t", "b": "\b", "n": "\n"}.get(char, char)
            elif char == '"':
                quoted = not quoted
                kept = len(said)
                continue
            said.append(char)
            kept = len(said)
        if quoted:
            raise MalformedGitConfig("a value's quote is not closed")
        return "".join(said[:kept])

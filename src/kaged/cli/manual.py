"""The manual page `kaged(1)`, made from the command tree: what `--help` says, on one page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kaged import __version__
from kaged.cli.exits import MEANINGS

_ENVIRONMENT: Final = (
    ("KAGED_HOME", "The folder for all files of kaged. Default: the XDG folders."),
    ("KAGED_DEBUG", "Set to 1 to print the traceback of an unexpected error."),
    ("KAGED_SCRIPT", "The script file for the model alias scripted."),
    ("NO_COLOR", "Set to any value to print without colors."),
)


def render_manual(root: Any) -> str:
    """Write the manual page of a tree of commands, in the language of man(7)."""
    lines = [
        f'.TH KAGED 1 "" "kaged {__version__}" "User Commands"',
        ".SH NAME",
        f"kaged \\- {_text(_sentence(root.help))}",
        ".SH SYNOPSIS",
        ".B kaged",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]",
        ".SH OPTIONS",
        *_parameters(root),
        ".SH COMMANDS",
        *_commands(root, "kaged"),
        ".SH EXIT STATUS",
    ]
    for code, meaning in MEANINGS.items():
        lines += [".TP", f".B {int(code)}", _text(meaning)]
    lines.append(".SH ENVIRONMENT")
    for name, meaning in _ENVIRONMENT:
        lines += [".TP", f".B {name}", _text(meaning)]
    return "\n".join(lines)


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        whole = f"{path} {name}"
        if getattr(command, "commands", None) is not None:
            yield from _commands(command, whole)
            if not command.invoke_without_command:
                continue
        arguments = [_usage(one) for one in command.params if one.param_type_name == "argument"]
        yield f".SS {' '.join([_text(whole), *arguments])}"
        yield from _paragraphs(command.help or "")
        yield from _parameters(command)


def _usage(argument: Any) -> str:
    name = _text((argument.metavar or argument.name or "").strip("[]").upper())
    return rf"\fI{name}\fR" if argument.required else rf"[\fI{name}\fR]"


def _parameters(command: Any) -> Iterator[str]:
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        if one.param_type_name == "argument":
            head = rf"\fI{_text((one.metavar or one.name).strip('[]').upper())}\fR"
        else:
            head = ", ".join(rf"\fB{_text(name)}\fR" for name in (*one.opts, *one.secondary_opts))
        yield ".TP"
        yield head
        yield _text(_sentence(getattr(one, "help", None)))


def _paragraphs(text: str) -> Iterator[str]:
    for number, part in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield _text(_sentence(part))


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _text(text: str) -> str:
    """Escape a text for the formatter."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain

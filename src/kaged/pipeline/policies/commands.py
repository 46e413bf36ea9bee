"""`CommandAllowlist`: only commands that are on a list, read by the shell's grammar."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field, field_validator

from kaged.pipeline.contexts import PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.plugin import Plugin
from kaged.pipeline.policies.options import Options, read_options
from kaged.pipeline.policies.shell_words import ScriptUnreadable, SimpleCommand, read_script
from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.records import PluginViolation
from kaged.pipeline.results import PluginResult
from kaged.pipeline.settings import PluginConfig
from kaged.pipeline.slots import Extensions

_Test = Callable[[str | None], bool]


class CommandOptions(Options):
    """The commands that may run, and where they are written in a call."""

    allow: list[str] = Field(min_length=1, max_length=1000)
    variables: list[str] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=lambda: ["shell.*"], min_length=1)
    argument: str = "command"

    @field_validator("allow")
    @classmethod
    def _named(cls, value: list[str]) -> list[str]:
        for pattern in value:
            words = pattern.split()
            if not words or set(words[0]) & set("*?["):
                raise ValueError(f"{pattern!r} must begin with the name of a command")
        return value


class CommandAllowlist(Plugin):
    """Denies a script with a command that no pattern allows.

    A pattern is a command's words: `git status`, `git log *`, `make test-?`. `*` as the last word
    stands for any further words, elsewhere for one. What is only known when the script runs, such
    as `$x` or `*.py`, matches `*` alone. Every command counts, wherever it stands in the script;
    `variables` names those that the script may set.
    """

    pure = True

    def __init__(self, config: PluginConfig) -> None:
        super().__init__(config)
        options = read_options(CommandOptions, config)
        self._applies = compile_names(options.tools)
        self._argument = options.argument
        self._may_set = compile_names(options.variables)
        self._patterns: dict[str, list[tuple[tuple[_Test, ...], bool]]] = {}
        for pattern in options.allow:
            name, *rest = pattern.split()
            open_end = bool(rest) and rest[-1] == "*"
            tests = tuple(_word_test(word) for word in (rest[:-1] if open_end else rest))
            self._patterns.setdefault(name, []).append((tests, open_end))

    async def tool_pre_invoke(
        self, payload: ToolPreInvokePayload, context: PluginContext, extensions: Extensions | None
    ) -> PluginResult[Any] | None:
        """Deny what is not on the list."""
        if not self._applies(payload.name):
            return None
        script = (payload.args or {}).get(self._argument)
        if script is None:
            return None  # a call about a shell that runs already
        if not isinstance(script, str):
            return _denied(payload.name, f"{self._argument} is not a text", {})
        try:
            read = read_script(script)
        except ScriptUnreadable as error:
            return _denied(payload.name, str(error), {})
        for command in read.commands:
            if not self._allows(command):
                reason = f"{command.text!r} is not an allowed command"
                return _denied(payload.name, reason, {"command": command.text})
        for name in sorted(read.variables):
            if not self._may_set(name):
                shown = name or "something that cannot be told"
                return _denied(payload.name, f"the script sets {shown}", {"variable": name})
        return None

    def _allows(self, command: SimpleCommand) -> bool:
        if not command.words:
            return True  # variables alone, which are looked at by name
        name, *rest = command.words
        if name is None:
            return False
        return any(
            _matches(tests, open_end, rest) for tests, open_end in self._patterns.get(name, ())
        )


def _matches(tests: Sequence[_Test], open_end: bool, words: Sequence[str | None]) -> bool:
    if len(words) < len(tests) or (len(words) > len(tests) and not open_end):
        return False
    return all(test(word) for test, word in zip(tests, words, strict=False))


def _word_test(pattern: str) -> _Test:
    if pattern == "*":
        return lambda _word: True
    compiled = re.compile(fnmatch.translate(pattern))
    return lambda word: word is not None and compiled.match(word) is not None


def _denied(tool: str, reason: str, details: dict[str, Any]) -> PluginResult[Any]:
    return PluginResult(
        continue_processing=False,
        violation=PluginViolation(
            reason=reason,
            description=f"{tool} may only run the commands on the operator's list: {reason}",
            code="command_denied",
            details=details,
            http_status_code=403,
        ),
    )

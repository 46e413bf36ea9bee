"""The pipeline's YAML file turned into plugin entries that know their lines: `PipelineDocument`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, to_json
from kaged.config.problems import Mark, Problem, Severity, format_key_path, show_value
from kaged.config.yamldoc import parse_yaml
from kaged.pipeline.modes import OLD_MODE_WORDS, PluginMode
from kaged.pipeline.settings import PluginConfig

MAX_PLUGINS = 500
MAX_FILE_CHARS = 1_000_000

_IGNORED_KEYS = frozenset(
    {
        "plugin_settings",
        "server_settings",
        "grpc_server_settings",
        "unix_socket_server_settings",
    }
)
_EXPRESSION = re.compile(r"\{\{(?P<body>.*?)\}\}|\{[%#].*?[%#]\}", re.DOTALL)
_ENV = re.compile(
    r"""\s*env(?:
        \.(?P<dotted>[A-Za-z_]\w*)
      | \[\s*(?P<q1>["'])(?P<indexed>[^"']+)(?P=q1)\s*\]
      | \.get\(\s*(?P<q2>["'])(?P<got>[^"']+)(?P=q2)\s*
           (?:,\s*(?P<q3>["'])(?P<fallback>[^"']*)(?P=q3)\s*)?\)
    )\s*(?:\|\s*default\(\s*(?P<q4>["'])(?P<default>[^"']*)(?P=q4)\s*\)\s*)?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """One sound entry of the file, with the place of each of its keys."""

    index: int
    config: PluginConfig
    line: int
    marks: Mapping[str, Mark]
    hook_marks: Mapping[str, Mark]

    def line_of(self, key: str) -> int:
        """Return the line of a key, or of the entry when it has no such key."""
        mark = self.marks.get(key)
        return self.line if mark is None else mark.line


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """What the file says: sound entries, everything wrong, and every hook that it names.

    `hooks` is None when the file is too broken to tell; then it may mean any hook.
    """

    file: str
    entries: tuple[PluginEntry, ...]
    problems: tuple[Problem, ...]
    hooks: frozenset[str] | None
    plugin_dirs: tuple[str, ...] = ()

    def with_configs(self, configs: Iterable[PluginConfig]) -> PipelineDocument:
        """Return the document with entries that no file has, after its own."""
        first = len(self.entries)
        more = tuple(
            PluginEntry(index, config, 1, {}, {}) for index, config in enumerate(configs, first)
        )
        named = {hook for entry in more for hook in entry.config.hooks}
        hooks = None if self.hooks is None else self.hooks | named
        return replace(self, entries=(*self.entries, *more), hooks=hooks)

    @property
    def faulty(self) -> bool:
        """Return whether anything is wrong enough to keep the file from being put in force."""
        return any(problem.severity is Severity.ERROR for problem in self.problems)


def parse_document(
    text: str, file: str, environ: Mapping[str, str] | None = None
) -> PipelineDocument:
    """Read the whole file and note every problem with plugin, key and line.

    `{{ env.NAME }}` stands for an environment variable; other template code is refused.
    """
    reader = _DocumentReader(file)
    if len(text) > MAX_FILE_CHARS:
        reader.note(None, "", f"the file is longer than {MAX_FILE_CHARS} characters", "split it")
        return reader.document()
    rendered = _render(text, reader, os.environ if environ is None else environ)
    parsed = parse_yaml(rendered, file)
    if any(problem.code == "empty_document" for problem in parsed.problems):
        return reader.document(hooks=frozenset())
    reader.problems.extend(parsed.problems)
    if parsed.node is None:
        return reader.document()
    return reader.read(parsed.node)


class _DocumentReader:
    """Walks the document, collecting entries and problems."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[Problem] = []
        self._hooks: set[str] = set()

    def note(
        self,
        mark: Mark | None,
        key_path: str,
        message: str,
        fix: str = "",
        severity: Severity = Severity.ERROR,
        code: str = "pipeline_invalid",
    ) -> None:
        self.problems.append(
            Problem(
                file=self._file,
                line=None if mark is None else mark.line,
                column=None if mark is None else mark.column,
                key_path=key_path,
                message=message,
                fix=fix,
                severity=severity,
                code=code,
            )
        )

    def read(self, root: Node) -> PipelineDocument:
        if root.value is None:
            return self.document(hooks=frozenset())
        if not isinstance(root.value, Mapping):
            self.note(root.mark, "", "the file is not a map", "begin it with plugins:")
            return self.document()
        known = {"plugins", "plugin_dirs", *_IGNORED_KEYS}
        self._warn_of_unknown(root, known, ())
        plugins = root.child("plugins")
        entries: list[PluginEntry] = []
        if plugins is not None and plugins.value is not None:
            if not isinstance(plugins.value, tuple):
                self.note(
                    plugins.mark, "plugins", "is not a list", "begin each plugin with '- name'"
                )
                return self.document()
            if len(plugins.value) > MAX_PLUGINS:
                self.note(plugins.mark, "plugins", f"more than {MAX_PLUGINS} plugins")
            for index, node in enumerate(plugins.value[:MAX_PLUGINS]):
                entry = self._entry(index, node)
                if entry is not None:
                    entries.append(entry)
        self._refuse_twins(entries)
        return self.document(tuple(entries), frozenset(self._hooks), self._plugin_dirs(root))

    def document(
        self,
        entries: tuple[PluginEntry, ...] = (),
        hooks: frozenset[str] | None = None,
        plugin_dirs: tuple[str, ...] = (),
    ) -> PipelineDocument:
        return PipelineDocument(self._file, entries, tuple(self.problems), hooks, plugin_dirs)

    def _entry(self, index: int, node: Node) -> PluginEntry | None:
        path = format_key_path(("plugins", index))
        if not isinstance(node.value, Mapping):
            self.note(node.mark, path, "is not a map", "write name, kind and hooks")
            return None
        disabled = node.child("mode") is not None and node.child("mode").value == "disabled"  # pyright: ignore[reportOptionalMemberAccess] - asked on the same line
        hook_marks = self._hook_marks(node, counted=not disabled)
        self._warn_of_unknown(node, set(PluginConfig.model_fields), ("plugins", index))
        data: Any = to_json(node)
        before = len(self.problems)
        self._check_mode(node, path)
        self._check_transport(node, path, data)
        if len(self.problems) > before and any(
            problem.severity is Severity.ERROR for problem in self.problems[before:]
        ):
            # Look at the rest too, so that one run lists everything; the word itself is reported.
            data = {name: value for name, value in data.items() if name != "mode"}
        try:
            config = PluginConfig.model_validate(data)
        except ValidationError as error:
            self._note_invalid(error, node, index, data)
            return None
        if any(problem.severity is Severity.ERROR for problem in self.problems[before:]):
            return None
        marks = {name: entry.mark for name, entry in node.value.items()}
        return PluginEntry(index, config, node.mark.line, marks, hook_marks)

    def _hook_marks(self, node: Node, *, counted: bool) -> dict[str, Mark]:
        hooks = node.child("hooks")
        marks: dict[str, Mark] = {}
        if hooks is not None and isinstance(hooks.value, tuple):
            for item in hooks.value:
                if isinstance(item.value, str):
                    marks.setdefault(item.value, item.mark)
        elif hooks is not None and isinstance(hooks.value, str):
            marks[hooks.value] = hooks.mark
        if counted:
            self._hooks.update(marks)
        return marks

    def _check_mode(self, node: Node, path: str) -> None:
        mode = node.child("mode")
        words = [*PluginMode, *OLD_MODE_WORDS]
        if mode is not None and mode.value not in words:
            self.note(
                mode.mark,
                f"{path}.mode",
                f"{show_value(mode.value)} is no mode",
                f"use one of {', '.join(PluginMode)}",
            )

    def _check_transport(self, node: Node, path: str, data: dict[str, Any]) -> None:
        given = [name for name in ("mcp", "grpc", "unix_socket") if data.get(name) is not None]
        for name in ("grpc", "unix_socket"):
            if name in given:
                self.note(
                    self._mark(node, name),
                    f"{path}.{name}",
                    "this transport is not supported",
                    "use mcp with kind: external",
                )
        if data.get("kind") == "external":
            if not given:
                self.note(node.mark, path, "kind external needs an mcp table", "add mcp:")
            if data.get("config") is not None:
                self.note(
                    self._mark(node, "config"),
                    f"{path}.config",
                    "an external plugin is configured at its own server",
                    "remove config",
                )
        elif "mcp" in given:
            self.note(self._mark(node, "mcp"), f"{path}.mcp", "only kind external has an mcp table")

    def _note_invalid(
        self, error: ValidationError, node: Node, index: int, data: dict[str, Any]
    ) -> None:
        name = data.get("name")
        for item in error.errors():
            where: Node = node
            mark = node.mark
            for step in item["loc"]:
                if isinstance(where.value, Mapping) and isinstance(step, str):
                    found = where.value.get(step)
                    if found is None:
                        break
                    where, mark = found.node, found.mark
                elif isinstance(where.value, tuple) and isinstance(step, int):
                    where = where.value[step]
                    mark = where.mark
            message = item["msg"].removeprefix("Value error, ")
            if isinstance(name, str):
                message = f"plugin {name!r}: {message}"
            cause = getattr(item.get("ctx", {}).get("error"), "__cause__", None)
            code = cause.code if isinstance(cause, KagedError) else "pipeline_invalid"
            path = format_key_path(("plugins", index, *item["loc"]))
            self.note(mark, path, message, code=code)

    def _refuse_twins(self, entries: list[PluginEntry]) -> None:
        seen: dict[str, int] = {}
        for entry in list(entries):
            name = entry.config.name
            if name in seen:
                self.note(
                    entry.marks.get("name"),
                    format_key_path(("plugins", entry.index, "name")),
                    f"a plugin named {name!r} is already on line {seen[name]}",
                    "give it another name",
                )
                entries.remove(entry)
            else:
                seen[name] = entry.line

    def _plugin_dirs(self, root: Node) -> tuple[str, ...]:
        node = root.child("plugin_dirs")
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, tuple) or not all(
            isinstance(item.value, str) for item in node.value
        ):
            self.note(node.mark, "plugin_dirs", "is not a list of folders")
            return ()
        return tuple(str(item.value) for item in node.value)

    def _warn_of_unknown(
        self, node: Node, known: Iterable[str], path: tuple[str | int, ...]
    ) -> None:
        names = set(known)
        assert isinstance(node.value, Mapping)
        for name, entry in node.value.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                self.note(
                    entry.mark,
                    format_key_path((*path, name)),
                    "is not a key of the pipeline file and has no effect",
                    f"did you mean {near[0]}?" if near else "",
                    Severity.WARNING,
                )

    @staticmethod
    def _mark(node: Node, name: str) -> Mark:
        entry = node.entry(name)
        return node.mark if entry is None else entry.mark


def _render(text: str, reader: _DocumentReader, environ: Mapping[str, str]) -> str:
    """Put environment variables in place of `{{ env.NAME }}`; lines stay where they are."""

    def value(match: re.Match[str]) -> str:
        mark = Mark(
            text.count("\n", 0, match.start()) + 1,
            match.start() - text.rfind("\n", 0, match.start()),
        )
        parts = _ENV.fullmatch(match["body"] or "")
        if parts is None:
            reader.note(
                mark,
                "",
                f"template code {show_value(match[0])} is not supported",
                "only {{ env.NAME }} and {{ env.get('NAME', 'default') }} are",
            )
            return ""
        name = parts["dotted"] or parts["indexed"] or parts["got"]
        fallback = parts["fallback"] if parts["default"] is None else parts["default"]
        if name not in environ and fallback is None:
            reader.note(mark, "", f"environment variable {name} is not set", f"set {name}")
            return ""
        found = environ.get(name, fallback)
        if "\n" in found or "\r" in found:
            reader.note(mark, "", f"environment variable {name} has more than one line")
            return ""
        return found

    return _EXPRESSION.sub(value, text)

"""What a finished tool call looks like: an edit is its diff, a command its last lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from kaged.cli.output import harmless
from kaged.cli.terminal.markdown import rendered

MAX_DIFF_LINES: Final = 40
MAX_OUTPUT_LINES: Final = 5
MAX_FAILED_LINES: Final = 12
MAX_WRITTEN_LINES: Final = 8
MAX_LINE_CHARS: Final = 400
INDENT: Final = "  "

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
_WRITES: Final = frozenset({"file.create", "file.write"})


def detail_lines(data: dict[str, Any], width: int) -> list[str]:
    """Return what is shown below the line of a call; nothing for most tools."""
    result, params = data.get("result"), data.get("params")
    result = result if isinstance(result, dict) else {}
    diff = result.get("diff")
    if isinstance(diff, str) and diff:
        return diff_lines(diff, width)
    if isinstance(result.get("stdout"), str) or isinstance(result.get("stderr"), str):
        return _output_lines(result, width)
    if data.get("tool_name") in _WRITES and isinstance(params, dict):
        content = params.get("content")
        if isinstance(content, str) and data.get("status") == "completed":
            return _written_lines(content, width)
    return []


def diff_lines(diff: str, width: int, limit: int = MAX_DIFF_LINES) -> list[str]:
    """Return a unified diff in colors, without the names of the files; a long one is cut."""
    lines = [one for one in diff.split("\n") if not one.startswith(("--- ", "+++ "))]
    while lines and not lines[-1]:
        lines.pop()
    shown = [(one, _DIFF_STYLES.get(one[:1], "dim")) for one in lines[:limit]]
    return _lines(shown, len(lines) - len(shown), width)


def _output_lines(result: dict[str, Any], width: int) -> list[str]:
    """Return the last lines of a command, more of them if it failed, and how it ended."""
    code = result.get("exit_code")
    failed = bool(code) or bool(result.get("timed_out"))
    lines = [
        line
        for name in ("stdout", "stderr")
        for line in str(result.get(name) or "").rstrip("\n").split("\n")
        if str(result.get(name) or "").strip()
    ]
    limit = MAX_FAILED_LINES if failed else MAX_OUTPUT_LINES
    left_out = max(0, len(lines) - limit)
    found: list[str] = []
    if left_out:
        found += _lines([(f"… {left_out} lines above", "dim italic")], 0, width)
    found += _lines([(one, "dim") for one in lines[left_out:]], 0, width)
    if result.get("timed_out"):
        found += _lines([("took too long and was ended", "yellow")], 0, width)
    elif code:
        found += _lines([(f"exit code {code}", "yellow")], 0, width)
    return found


def _written_lines(content: str, width: int) -> list[str]:
    lines = content.removesuffix("\n").split("\n")
    shown = [(f"+{one}", "green") for one in lines[:MAX_WRITTEN_LINES]]
    return _lines(shown, len(lines) - len(shown), width)


def _lines(lines: Sequence[tuple[str, str]], left_out: int, width: int) -> list[str]:
    found: list[str] = []
    for line, style in lines:
        plain = harmless(line[:MAX_LINE_CHARS]).expandtabs(4)
        text = Text(f"{INDENT}{plain}", style=style, no_wrap=True, overflow="ellipsis")
        text.truncate(max(width - 1, 20), overflow="ellipsis")
        found += rendered(text, width)
    if left_out > 0:
        found += rendered(Text(f"{INDENT}… {left_out} more lines", style="dim italic"), width)
    return found

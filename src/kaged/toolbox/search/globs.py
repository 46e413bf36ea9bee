"""`PathGlob`: a file pattern as agents write it, compiled to an expression that cannot run away.

`*`, `?`, `[a-z]`, `{a,b}` and `**` as a whole component. A star never crosses a slash. Every star
but the last of a component, and every `**` but the last of a pattern, takes the first place that
fits and never comes back to it, so that a match takes time in proportion to the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.tools.errors import ToolError

MAX_ALTERNATIVES: Final = 256
MAX_GLOB_CHARS: Final = 4096
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.*?+-]*")


@dataclass(frozen=True, slots=True)
class PathGlob:
    """A compiled pattern. `matches` takes a path without `./` in front.

    `depth` is how many components a match can have at most, None for any number. `names` are
    patterns for the last component that ripgrep can take as they are; empty when there are none.
    With `by_name` they say it all: nothing else of a path counts.
    `dotted` says that the pattern itself names something hidden.
    """

    text: str
    regex: re.Pattern[str]
    negated: bool
    depth: int | None
    names: tuple[str, ...]
    by_name: bool
    dotted: bool
    first: str | None
    """The first component, where it is the same plain name in every alternative."""

    def matches(self, path: str) -> bool:
        """Return whether a relative path fits."""
        return (self.regex.fullmatch(path) is None) is self.negated


def compile_glob(text: str, *, hidden: bool = True) -> PathGlob:
    """Compile a pattern; one without a slash fits names at any depth.

    Without `hidden` a wildcard never stands for a leading dot; the pattern has to write it.
    Raises `invalid_pattern`.
    """
    if len(text) > MAX_GLOB_CHARS:
        raise ToolError(
            f"the glob is longer than {MAX_GLOB_CHARS} characters", code="invalid_pattern"
        )
    body = text.removeprefix("!")
    if not body or "\0" in body:
        raise ToolError(
            "the glob is empty or holds a NUL", code="invalid_pattern", fix="e.g. **/*.py"
        )
    alternatives = [_components(one) for one in _expand(body, text)]
    sources: list[str] = []
    for parts in alternatives:
        sources.append(_path_source(parts, text, hidden=hidden))
        literal = "/".join(parts)
        if "[" in literal:
            # Names such as `[id].tsx` are written without escapes by everybody.
            quoted = [part.replace("[", "\\[") for part in parts]
            sources.append(_path_source(quoted, text, hidden=hidden))
    firsts = {parts[0] for parts in alternatives if parts}
    first = firsts.pop() if len(firsts) == 1 else None
    return PathGlob(
        text=text,
        regex=re.compile("|".join(sources), re.DOTALL),
        negated=text.startswith("!"),
        depth=None if any("**" in parts for parts in alternatives) else max(map(len, alternatives)),
        names=_names(alternatives),
        by_name=all(len(parts) == 2 and parts[0] == "**" for parts in alternatives),
        dotted=any(part.startswith((".", "\\.")) for parts in alternatives for part in parts),
        first=first if first is not None and re.fullmatch(r"[\w.-]+", first) else None,
    )


def climbs(text: str) -> bool:
    """Return whether a pattern leads out of the place it starts from, or is absolute."""
    body = text.removeprefix("!")
    return body.startswith(("/", "~")) or any(
        part == ".." for one in re.split(r"[{},]", body) for part in one.split("/")
    )


def _components(text: str) -> list[str]:
    if text.endswith("/"):
        text += "**"
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if "/" not in text.removeprefix("./"):
        parts.insert(0, "**")
    merged: list[str] = []
    for part in parts:
        if part == "**" and merged and merged[-1] == "**":
            continue
        merged.append(part)
    return merged or ["**"]


def _names(alternatives: list[list[str]]) -> tuple[str, ...]:
    last = {parts[-1] for parts in alternatives}
    # "include:" is a directive where ripgrep takes such a pattern, and everything else beyond the
    # plain characters might mean something else there.
    if "**" in last or not all(_PLAIN.fullmatch(one) and "**" not in one for one in last):
        return ()
    return tuple(sorted(last))


def _expand(text: str, whole: str) -> list[str]:
    done: list[str] = []
    waiting = [text]
    while waiting:
        one = waiting.pop()
        span = _first_braces(one, whole)
        if span is None:
            done.append(one)
        else:
            start, end, choices = span
            waiting.extend(one[:start] + choice + one[end:] for choice in reversed(choices))
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise ToolError(
                f"the glob stands for more than {MAX_ALTERNATIVES} alternatives",
                code="invalid_pattern",
            )
    return done


def _first_braces(text: str, whole: str) -> tuple[int, int, list[str]] | None:
    start = -1
    level = 0
    pieces: list[str] = []
    piece = 0
    for index, char in _unescaped(text):
        if char == "{":
            level += 1
            if level == 1:
                start, piece = index, index + 1
        elif char == "}" and level:
            level -= 1
            if level == 0:
                pieces.append(text[piece:index])
                return start, index + 1, pieces
        elif char == "," and level == 1:
            pieces.append(text[piece:index])
            piece = index + 1
    if level:
        raise ToolError(
            f"a brace is not closed in {whole!r}",
            code="invalid_pattern",
            fix="write e.g. *.{ts,tsx}",
        )
    return None


def _unescaped(text: str) -> Iterator[tuple[int, str]]:
    index = 0
    in_class = False
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "[" and not in_class and "]" in text[index + 2 :]:
            in_class = True
        elif char == "]":
            in_class = False
        elif not in_class:
            yield index, char
        index += 1


def _path_source(parts: list[str], whole: str, *, hidden: bool) -> str:
    step = "[^/]+" if hidden else r"(?!\.)[^/]+"
    runs: list[list[str]] = [[]]  # the components between the `**`
    for part in parts:
        if part == "**":
            runs.append([])
        else:
            runs[-1].append(_component_source(part, whole, hidden=hidden))
    if len(runs) == 1:
        return "/".join(runs[0])
    out = "".join(one + "/" for one in runs[0])
    for run in runs[1:-1]:
        out += f"(?>(?:{step}/)*?" + "".join(one + "/" for one in run) + ")"
    out += f"(?:{step}/)*"
    return out + ("/".join(runs[-1]) if runs[-1] else step)


def _component_source(part: str, whole: str, *, hidden: bool) -> str:
    fixed: list[str] = [""]
    index = 0
    while index < len(part):
        char = part[index]
        index += 1
        if char == "*":
            if index < 2 or part[index - 2] != "*":
                fixed.append("")
        elif char == "?":
            fixed[-1] += "[^/]"
        elif char == "[":
            source, index = _class_source(part, index, whole)
            fixed[-1] += source
        elif char == "\\" and index < len(part):
            fixed[-1] += re.escape(part[index])
            index += 1
        else:
            fixed[-1] += re.escape(char)
    guard = "" if hidden or part.startswith((".", "\\.")) else r"(?!\.)"
    if len(fixed) == 1:
        return guard + fixed[0]
    inner = "".join(f"(?>[^/]*?{one})" for one in fixed[1:-1] if one)
    return f"{guard}{fixed[0]}{inner}[^/]*{fixed[-1]}"


def _class_source(part: str, index: int, whole: str) -> tuple[str, int]:
    negated = part[index : index + 1] in {"!", "^"} and part[index : index + 1] != ""
    start = index + negated
    # A bracket right behind the opening one is a member, not the end.
    end = part.find("]", start + 1)
    if end < 0:
        raise ToolError(
            f"a bracket is not closed in {whole!r}",
            code="invalid_pattern",
            fix="write e.g. [a-z]*.c",
        )
    members = part[start:end].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    members = re.sub(r"([&~|^])", r"\\\1", members)
    source = f"(?!/)[{'^' if negated else ''}{members}]"
    try:
        re.compile(source)
    except re.error as error:
        raise ToolError(
            f"the bracket in {whole!r} cannot be read: {error.msg}", code="invalid_pattern"
        ) from None
    return source, end + 1

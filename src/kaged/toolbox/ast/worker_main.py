"""The process that parses: reads source texts from its input, answers with what matched.

Started by path, not by module name, and importing nothing of kaged: it starts in a fraction of the
time. It opens no files; texts come through the pipe. Parsers are native code that reads whatever
lies in a repository, which is why this is a process of its own.

A message is two 4-byte lengths, a JSON head and a body of raw bytes; an answer is one length and
JSON. `prepare` reads patterns and is the first message of a job; `search` and `rewrite` bring a
batch of files for the patterns prepared last.
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import sys
from collections.abc import Iterator
from typing import Any

MEMORY_BYTES = 2 * 1024 * 1024 * 1024
CONTENT_CHARS = 64 * 1024
ANSWER_CHARS = 288 * 1024
"""So much text of matches goes into one answer: more than a call may return of all of them."""
_MATCH_CHARS = 64
HEAD = struct.Struct(">II")
LENGTH = struct.Struct(">I")

META = re.compile(r"\$\$\$[A-Z_][A-Z0-9_]*|\$\$\$|\$[A-Z_][A-Z0-9_]*")
_DOUBLE = re.compile(r"(?<!\$)\$\$(?!\$)[A-Za-z_]")
_LOWER = re.compile(r"(?<![\w$])\${1,3}[a-z]\w*")
_STAND_IN = "kagedvar"
_LEAF = re.compile(r"[!-~]{3,200}")
_UNTEXTUAL = {"signature"}
_EXACT = {"smart", "cst"}
_NAMES_AND_VALUES = {"identifier", "number", "string", "number_literal", "integer"}
_DOLLAR_LANGUAGES = {"bash", "php", "scala", "kotlin", "dart", "nix", "markdown", "ruby"}


class Job:
    """The patterns of one call, ready to be matched."""

    def __init__(self, lang: str, patterns: list[str], strictness: str) -> None:
        self.lang = lang
        self.patterns = patterns
        self.rules: list[Any] = []
        for pattern in patterns:
            rule: Any = pattern
            if strictness != "smart":
                rule = {"context": pattern, "strictness": strictness}
            self.rules.append({"rule": {"pattern": rule}})
        self.variables = [variables_of(pattern) for pattern in patterns]


def variables_of(pattern: str) -> tuple[list[str], list[str]]:
    """Return the names that a pattern binds: to one node, and to any number of nodes."""
    single: list[str] = []
    multi: list[str] = []
    for found in META.finditer(pattern):
        text = found[0]
        name = text.lstrip("$")
        if not name or name.startswith("_"):
            continue
        names = multi if text.startswith("$$$") else single
        if name not in names:
            names.append(name)
    return single, multi


def parse(source: str, lang: str) -> Any:
    """Return the root node of a text."""
    from ast_grep_py import SgRoot  # noqa: PLC0415 - the search path is set up in main

    return SgRoot(source, lang).root()


def leaves(node: Any) -> Iterator[Any]:
    """Yield the nodes without children, comments and broken parts left out."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        kind = one.kind()
        if kind == "ERROR" or "comment" in kind:
            continue
        children = one.children()
        if children:
            waiting.extend(reversed(children))
        else:
            yield one


def literal_of(root: Any, strictness: str) -> str | None:
    """Return the longest text that every match must contain, to look for it before parsing."""
    if strictness in _UNTEXTUAL:
        return None
    best = ""
    for leaf in leaves(root):
        if not leaf.is_named() and strictness not in _EXACT:
            continue
        text = leaf.text()
        if len(text) > len(best) and _STAND_IN not in text and _LEAF.fullmatch(text):
            best = text
    return best or None


def parse_pattern(pattern: str, lang: str) -> Any:
    """Parse a pattern with names in place of its variables; None when it is no whole code.

    Where any number of nodes may stand, a name may be wrong and nothing be right; and some
    languages want a line to end.
    """
    count = 0

    def named(_: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{_STAND_IN}{count}"

    def emptied(found: re.Match[str]) -> str:
        return "" if found[0].startswith("$$$") else named(found)

    for stand_in in (named, emptied):
        text = META.sub(stand_in, pattern)
        for source in (text, text + "\n"):
            root = parse(source, lang)
            if root.kind() != "ERROR" and all(one.kind() != "ERROR" for one in root.children()):
                return root
    return None


def check_pattern(job: Job, index: int, strictness: str) -> dict[str, Any]:
    """Return what a pattern binds and contains, or what is wrong with it."""
    pattern = job.patterns[index]
    if not pattern.strip():
        return {"error": "the pattern is empty"}
    if _DOUBLE.search(pattern) and job.lang not in _DOLLAR_LANGUAGES:
        return {
            "error": "$$NAME is not a variable; write $NAME for one node or $$$NAME for several"
        }
    if META.fullmatch(pattern.strip()) and pattern.strip().startswith("$$$"):
        return {"error": "$$$ alone is no code; put it inside something, e.g. f($$$ARGS)"}
    root = parse_pattern(pattern, job.lang)
    if root is None:
        hint = ""
        if _LOWER.search(pattern) and job.lang not in _DOLLAR_LANGUAGES:
            hint = "; meta-variables are written in capitals, e.g. $NAME"
        return {"error": f"it is not a complete piece of {job.lang} code{hint}"}
    try:
        parse("x", job.lang).find_all(job.rules[index])
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        return {"error": f"it is not one piece of {job.lang} code: {reason}"}
    single, multi = job.variables[index]
    return {"single": single, "multi": multi, "literal": literal_of(root, strictness)}


class ParsedSource:
    """A source file: its text, and where its characters lie in its bytes."""

    def __init__(self, data: bytes) -> None:
        self.bom = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self.source = data[self.bom :].decode("utf-8")
        self._ascii = len(self.source) == len(data) - self.bom
        self._char = 0
        self._byte = 0
        self._lines: list[str] | None = None

    def byte_at(self, char: int) -> int:
        """Return the byte offset of a character; cheap when asked in ascending order."""
        if self._ascii:
            return char + self.bom
        if char < self._char:
            self._char = self._byte = 0
        self._byte += len(self.source[self._char : char].encode())
        self._char = char
        return self._byte + self.bom

    def around(self, start: int, end: int, count: int) -> tuple[list[str], list[str]]:
        """Return the lines before and after some lines."""
        if self._lines is None:
            self._lines = [line.removesuffix("\r") for line in self.source.split("\n")]
            if not self._lines[-1]:
                del self._lines[-1]
        return self._lines[max(0, start - count) : start], self._lines[end + 1 : end + 1 + count]


def captured(node: Any, names: tuple[list[str], list[str]], source: str) -> dict[str, str]:
    """Return the source text of each variable of a match."""
    single, multi = names
    found: dict[str, str] = {}
    for name in single:
        one = node.get_match(name)
        if one is not None:
            found[name] = one.text()
    for name in multi:
        several = node.get_multiple_matches(name)
        found[name] = (
            source[several[0].range().start.index : several[-1].range().end.index]
            if several
            else ""
        )
    return found


def search(job: Job, text: ParsedSource, context: int, room: int) -> dict[str, Any]:
    """Find the matches of the first pattern in one file; beyond `room` they are only counted."""
    root = parse(text.source, job.lang)
    nodes = [(node.range(), node) for node in root.find_all(job.rules[0])]
    nodes.sort(key=lambda pair: (pair[0].start.index, -pair[0].end.index))
    matches: list[Any] = []
    used = 0
    for place, node in nodes:
        if used >= room:
            break
        content = node.text()
        if len(content) > CONTENT_CHARS:
            content = content[:CONTENT_CHARS] + "[truncated]"
        before: list[str] = []
        after: list[str] = []
        if context:
            last = place.end.line
            if place.end.column == 0 and last > place.start.line:
                last -= 1  # it ends with the line break itself
            before, after = text.around(place.start.line, last, context)
        variables = captured(node, job.variables[0], text.source)
        matches.append([place.start.line + 1, content, variables, before, after])
        used += _MATCH_CHARS + len(content) + sum(map(len, (*variables.values(), *before, *after)))
    return {"matches": matches, "found": len(nodes), "used": used}


def broken_at(root: Any) -> int | None:
    """Return the line of the first syntax error, None for a text without."""
    node = root.find(kind="ERROR")
    if node is not None:
        return int(node.range().start.line) + 1
    # What the parser put in to go on has no text: a token, or a name.
    for node in root.find_all(regex="^$"):
        kind = node.kind()
        if not node.children() and (
            (not node.is_named() and not kind.startswith("#"))
            or kind in _NAMES_AND_VALUES
            or kind.endswith("_identifier")
        ):
            return int(node.range().start.line) + 1
    return None


def rewrite(job: Job, text: ParsedSource, templates: list[str]) -> dict[str, Any]:
    """Work out the edits of one file, on its original text, none of them overlapping."""
    root = parse(text.source, job.lang)
    line = broken_at(root)
    if line is not None:
        return {"broken": f"syntax error in line {line}"}
    first = text.source.find("\n")
    if first > 0 and text.source[first - 1] == "\r":
        templates = [re.sub(r"\r?\n", "\r\n", one) for one in templates]
    wanted: list[tuple[int, int, int, Any, str]] = []
    for order, rule in enumerate(job.rules):
        for node in root.find_all(rule):
            place = node.range()
            after = substitute(templates[order], captured(node, job.variables[order], text.source))
            if after != node.text():
                wanted.append((place.start.index, -place.end.index, order, node, after))
    wanted.sort(key=lambda one: one[:3])
    edits: list[Any] = []
    free_from = 0
    for start, negative_end, _, node, after in wanted:
        if start < free_from:
            continue
        free_from = -negative_end
        place = node.range()
        edits.append(
            [
                text.byte_at(start),
                text.byte_at(free_from),
                place.start.line + 1,
                place.start.column + 1,
                place.end.line + 1,
                place.end.column + 1,
                node.text(),
                after,
            ]
        )
    return {"edits": edits}


def substitute(template: str, values: dict[str, str]) -> str:
    """Put captured texts into a template; what binds nothing stays as it is written."""

    def value(found: re.Match[str]) -> str:
        return values.get(found[0].lstrip("$"), found[0])

    return META.sub(value, template)


def each_file(head: dict[str, Any], body: memoryview) -> Iterator[bytes]:
    """Cut a batch into its files."""
    start = 0
    for size in head["sizes"]:
        yield bytes(body[start : start + size])
        start += size


def answer(job: Job | None, head: dict[str, Any], body: memoryview) -> tuple[Job | None, Any]:
    """Do what a message asks."""
    if head["op"] == "prepare":
        job = Job(head["lang"], head["patterns"], head["strictness"])
        checks = [
            check_pattern(job, index, head["strictness"]) for index in range(len(job.patterns))
        ]
        return job, checks
    if job is None:
        raise ValueError("no patterns were prepared")
    results: list[Any] = []
    room = ANSWER_CHARS
    for data in each_file(head, body):
        try:
            text = ParsedSource(data)
            if head["op"] == "search":
                results.append(search(job, text, head["context"], room))
                room -= results[-1]["used"]
            else:
                results.append(rewrite(job, text, head["templates"]))
        except UnicodeDecodeError:
            results.append({"broken": "not UTF-8 text"})
        except RecursionError:
            results.append({"broken": "nested too deeply"})
        except MemoryError:
            results.append({"broken": "too large"})
    return job, results


def read_exactly(count: int) -> memoryview | None:
    """Read so many bytes; None when the daemon is gone."""
    buffer = bytearray(count)
    view = memoryview(buffer)
    done = 0
    while done < count:
        got = os.readv(0, [view[done:]])
        if got == 0:
            return None
        done += got
    return view


def serve() -> None:
    """Answer messages until the daemon closes the pipe."""
    job: Job | None = None
    while (lengths := read_exactly(HEAD.size)) is not None:
        head_size, body_size = HEAD.unpack(lengths)
        head, body = read_exactly(head_size), read_exactly(body_size)
        if head is None or body is None:
            return
        try:
            job, said = answer(job, json.loads(bytes(head)), body)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Boundary: the binding panics with an exception outside the normal hierarchy.
        except BaseException as error:  # noqa: BLE001 - told to the daemon, which decides
            said = {"failed": f"{type(error).__name__}: {error}"[:500]}
        # Half a surrogate pair cannot come out of UTF-8 text, so this is always encodable.
        raw = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
        view = memoryview(LENGTH.pack(len(raw)) + raw)
        while view:
            view = view[os.write(1, view) :]


def main() -> None:
    """Set limits, find the binding in the directory named by the argument, serve."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # panics write there, and nobody reads it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.append(sys.argv[1])
    parse("x", "python")  # the binding is loaded before the first message, or not at all
    os.write(1, LENGTH.pack(4) + b'"ok"')
    serve()


if __name__ == "__main__":
    main()

"""`widening`: what is narrower in every respect is not asked for again, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kaged.config.ask_order import widening
from kaged.config.problems import ConfigFileInvalid
from kaged.config.project import parse_project
from kaged.config.project_ask import project_ask, unasked
from kaged.config.toolrules import ToolRule
from kaged.kernel.ask import MAX_ASKED_THINGS, Ask
from kaged.kernel.mounts import Mount, MountTable
from kaged.kernel.policy import FsMode

ROOT = Path("/srv/p")
RANK = {None: 0, FsMode.RO: 1, FsMode.RW: 2}

_NAMES = ("file.read", "file.write", "shell.bash", "search.grep", "plug.one", "kaged.ask")
_PATTERNS = st.sampled_from(
    ["*", "file.*", "f*", "file.read", "file.write", "shell.*", "shell.bash", "plug.*", "*.bash"]
)
_RULES = st.dictionaries(_PATTERNS, st.booleans(), max_size=5)
_PATHS = st.sampled_from([".", "a", "a/b", "a/b/c", "d"])
_MOUNTS = st.dictionaries(_PATHS, st.sampled_from(["ro", "rw"]), max_size=4)


def _ask(**primary: Any) -> Ask:
    agent = {"model": "m", "system_prompt": "You help.", "cage": {}, **primary}
    return project_ask(parse_project(yaml.safe_dump({"primary": agent}), ROOT).value)


def _on(rules: dict[str, bool], name: str) -> bool:
    best: ToolRule | None = None
    for pattern, enabled in rules.items():
        rule = ToolRule(pattern, enabled, 0)
        if rule.matches(name) and (best is None or rule.specificity >= best.specificity):
            best = rule
    return best is not None and best.enabled


@given(_RULES, _RULES)
def test_no_tool_comes_without_being_asked_for(old: dict[str, bool], new: dict[str, bool]) -> None:
    asks = [
        _ask(tools={name: {"enabled": on} for name, on in rules.items()}) for rules in (old, new)
    ]
    if not widening(*asks):
        gained = [name for name in _NAMES if _on(new, name) and not _on(old, name)]
        assert gained == []


@given(_MOUNTS, _MOUNTS)
def test_no_path_comes_without_being_asked_for(old: dict[str, str], new: dict[str, str]) -> None:
    def ask(modes: dict[str, str]) -> Ask:
        return _ask(cage={"fs": [{"mode": mode, "path": path} for path, mode in modes.items()]})

    def mode(modes: dict[str, str], path: str) -> FsMode | None:
        place = {one: "/" if one == "." else f"/{one}" for one in modes}
        return MountTable(Mount(place[one], FsMode(kind)) for one, kind in modes.items()).mode_at(
            path
        )

    places = ("/", "/a", "/a/x", "/a/b", "/a/b/x", "/a/b/c", "/a/b/c/x", "/d", "/d/x", "/e")
    wider = any(RANK[mode(new, one)] > RANK[mode(old, one)] for one in places)
    assert bool(widening(ask(old), ask(new))) is wider


def test_patterns_are_compared_by_their_text() -> None:
    held = {"fs": [{"mode": "rw", "path": "."}, {"mode": "ro", "path": "*.key"}]}
    assert not widening(_ask(cage=held), _ask(cage=held))
    assert widening(_ask(cage=held), _ask(cage={"fs": held["fs"][:1]}))
    assert widening(_ask(cage=held), _ask(cage={"fs": [{"mode": "rw", "path": "a*"}]}))
    assert not widening(_ask(cage=held), _ask(cage={"fs": held["fs"][1:]}))


def test_another_name_of_a_tool_that_is_off_is_not_narrower() -> None:
    old = _ask(tools={"search.*": {"enabled": True}, "search.ast": {"enabled": False}})
    more = {"search.*": {"enabled": True}, "search.ast": {"enabled": False}}
    assert widening(old, _ask(tools={**more, "search.ast_grep": {"enabled": True}}))
    assert widening(_ask(tools={"plug.*": {"enabled": False}}), _ask(tools={}))


def test_no_cage_covers_what_a_cage_would_give() -> None:
    free = _ask(cage="disabled")
    caged = _ask(cage={"net": {"allow": ["*"]}, "capabilities": ["shell"]})
    assert not widening(free, caged)
    assert widening(caged, free)


def test_each_toolchain_is_asked_for_by_itself() -> None:
    one, two = (_ask(cage={"toolchains": names}) for names in (["node"], ["python", "node"]))
    assert [thing.key for thing in widening(one, two)] == ["primary: toolchain python"]
    assert widening(two, one) == ()
    assert widening(_ask(cage="disabled"), two) == ()
    (said,) = [thing.sentence for thing in widening(one, two)]
    assert said.words.startswith("primary may use the python toolchain in your home, read-only")


def test_every_public_host_does_not_cover_this_machine() -> None:
    every = _ask(cage={"net": {"allow": ["*"]}})
    assert not widening(every, _ask(cage={"net": {"allow": ["a.example:443"]}}))
    assert widening(every, _ask(cage={"net": {"allow": ["localhost:80"]}}))


def test_an_ask_is_the_same_after_the_store() -> None:
    ask = _ask(tools={"*": {"enabled": True}}, plugins={"p": {"package": "p", "config": {"a": 1}}})
    again = Ask.from_json(ask.as_json())
    assert (again, again.digest) == (ask, ask.digest)
    for written in (None, [], {}, {"things": 1}, {"things": [{}]}, {"things": ["x"]}):
        with pytest.raises(ValueError, match="ask"):
            Ask.from_json(written)  # type: ignore[arg-type]


def test_settings_in_another_order_are_the_same_settings() -> None:
    def asked(settings: str) -> Ask:
        declared = f"plugins: {{memory: {{package: memory, config: {{place: {settings}}}}}}}"
        text = f"primary: {{model: m, system_prompt: You help., cage: {{}}, {declared}}}\n"
        return project_ask(parse_project(text, ROOT).value)

    first = asked("{near: a, far: {x: 1, y: 2}}")
    assert asked("{far: {y: 2, x: 1}, near: a}").digest == first.digest
    assert asked("{near: a, far: {x: 2, y: 1}}").digest != first.digest


def test_words_hide_nothing_on_a_terminal() -> None:
    text = "".join(line for line in _ask(system_prompt="safe\x1b[2K\u202eevil\ncage").lines())
    assert text.isprintable()
    assert "safe" in text


def test_what_init_writes_is_within_what_needs_no_asking() -> None:
    assert [one.key for one in unasked().things] == [
        "primary: cage", "primary: instructions", "primary: tools",
    ]  # fmt: skip
    assert widening(unasked(), _ask())


def test_a_file_that_asks_for_more_than_anybody_reads_is_refused() -> None:
    child = {"model": "m", "system_prompt": "x"}
    many = {f"a{number}": child for number in range(100)}
    tree = {f"b{number}": {**child, "subagents": many} for number in range(20)}
    with pytest.raises(ConfigFileInvalid, match=str(MAX_ASKED_THINGS)):
        _ask(subagents=json.loads(json.dumps(tree)))  # nothing shared, so no aliases

from __future__ import annotations

import pytest

from kaged.config.problems import Severity
from kaged.pipeline import PluginConfig, PluginMode, parse_document
from kaged.pipeline.document import MAX_FILE_CHARS, MAX_PLUGINS, PipelineDocument
from requirements import requirement

EXAMPLE = """\
plugins:
  - name: header_injector
    kind: my_app.HeaderInjectorPlugin
    hooks:
      - tool_pre_invoke
    mode: sequential
    capabilities:
      - read_headers
      - write_headers
"""


def read(text: str, **environ: str) -> PipelineDocument:
    return parse_document(text, "pipeline.yaml", environ)


def faults(document: PipelineDocument) -> list[tuple[int | None, str]]:
    return [
        (problem.line, problem.message)
        for problem in document.problems
        if problem.severity is Severity.ERROR
    ]


@requirement("EX-CFG-01")
def test_the_example_of_the_specification_loads() -> None:
    document = read(EXAMPLE)
    assert not document.faulty
    (entry,) = document.entries
    config = entry.config
    assert (config.name, config.kind) == ("header_injector", "my_app.HeaderInjectorPlugin")
    assert config.hooks == ["tool_pre_invoke"]
    assert config.mode is PluginMode.SEQUENTIAL
    assert config.capabilities == frozenset({"read_headers", "write_headers"})
    assert document.hooks == frozenset({"tool_pre_invoke"})
    assert (entry.line, entry.line_of("mode"), entry.line_of("config")) == (2, 6, 2)
    assert config.model_dump()["capabilities"] == ["read_headers", "write_headers"]


@requirement("EX-CAP-01")
def test_capabilities_are_a_list_of_names_and_none_when_left_out() -> None:
    with_list, without, null = (
        read(f"plugins:\n  - {{name: p, kind: a.B, hooks: [h]{more}}}\n").entries[0].config
        for more in (", capabilities: [read_agent]", "", ", capabilities: null")
    )
    assert with_list.capabilities == frozenset({"read_agent"})
    assert without.capabilities == null.capabilities == frozenset()


@requirement("EX-AMB-09")
@pytest.mark.parametrize(
    ("written", "named"),
    [("[read_header]", "read_header"), ("read_headers", "list"), ("{a: b}", "list"), ("[5]", "5")],
)
def test_unknown_capabilities_are_refused_with_plugin_name_and_the_known_ones(
    written: str, named: str
) -> None:
    document = read(f"plugins:\n  - name: injector\n    kind: a.B\n    capabilities: {written}\n")
    assert document.entries == ()
    ((line, message),) = faults(document)
    assert line == 4
    assert "injector" in message
    assert named in message
    if written == "[read_header]":
        assert "write_headers" in message
    for accepted in ((), ("read_agent",), None, frozenset({"read_agent"})):
        PluginConfig.model_validate({"name": "p", "kind": "a.B", "capabilities": accepted})


def test_every_problem_is_listed_with_its_line() -> None:
    document = read(
        """\
plugins:
  - name: one
    kind: a.B
    hooks: [tool_pre_invoke]
    capabilities: [read_header]
    priority: high
    mode: parallel
  - just text
  - name: two
    kind: a.B
    hooks: [tool_post_invoke]
    on_error: explode
    timeout_s: -1
  - kind: a.B
    hooks: agent_pre_invoke
  - name: fine
    kind: a.B
    hooks: [prompt_pre_fetch]
    conditions:
      - tools: 5
  - name: off
    kind: a.B
    hooks: [http_pre_request]
    mode: disabled
"""
    )
    lines = [line for line, _ in faults(document)]
    assert sorted(line or 0 for line in lines) == [5, 6, 7, 8, 12, 13, 14, 15, 20]
    assert [entry.config.name for entry in document.entries] == ["off"]
    assert document.hooks == frozenset(
        {"tool_pre_invoke", "tool_post_invoke", "agent_pre_invoke", "prompt_pre_fetch"}
    )
    by_line = dict(faults(document))
    assert "parallel" in by_line[7]
    assert "one" in by_line[5]
    paths = {problem.line: problem.key_path for problem in document.problems}
    assert paths[12] == "plugins[2].on_error"
    assert paths[20] == "plugins[4].conditions[0].tools"


def test_a_name_can_be_used_once() -> None:
    document = read(
        "plugins:\n  - {name: p, kind: a.B, hooks: [h]}\n  - {name: p, kind: c.D, hooks: [h]}\n"
    )
    assert [entry.config.kind for entry in document.entries] == ["a.B"]
    ((line, message),) = faults(document)
    assert line == 3
    assert "line 2" in message


def test_a_hook_listed_twice_counts_once() -> None:
    document = read("plugins:\n  - {name: p, kind: a.B, hooks: [h, h, g]}\n")
    assert document.entries[0].config.hooks == ["h", "g"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("- a\n- b\n", "map"),
        ("plugins: 5\n", "list"),
        ("plugins: [", ""),
        ("a: 1\na: 2\n{", ""),
        ("x" * (MAX_FILE_CHARS + 1), "longer"),
    ],
)
def test_a_file_that_cannot_be_understood_may_mean_any_hook(text: str, word: str) -> None:
    document = read(text)
    assert document.faulty
    assert document.hooks is None
    assert any(word in message for _, message in faults(document))


@pytest.mark.parametrize("text", ["", "# nothing\n", "plugins:\n", "~\n", "plugin_dirs: []\n"])
def test_an_empty_file_asks_for_nothing(text: str) -> None:
    document = read(text)
    assert not document.faulty
    assert document.entries == ()
    assert document.hooks == frozenset()


def test_unknown_keys_are_warned_about_and_have_no_effect() -> None:
    document = read(
        "plugin: []\nserver_settings: {}\nplugins:\n  - {name: p, kind: a.B, hook: [h]}\n"
    )
    assert not document.faulty
    warnings = {problem.line: problem for problem in document.problems}
    assert warnings[1].fix == "did you mean plugins?"
    assert warnings[4].key_path == "plugins[0].hook"
    assert read("zzzzzz: 1\n").problems[0].fix == ""


def test_too_many_plugins_are_refused() -> None:
    rows = "".join(f"  - {{name: p{n}, kind: a.B}}\n" for n in range(MAX_PLUGINS + 1))
    document = read("plugins:\n" + rows)
    assert document.faulty
    assert len(document.entries) == MAX_PLUGINS


def test_environment_variables_take_the_place_of_expressions() -> None:
    document = read(
        """\
plugins:
  - name: "{{ env.NAME }}"
    kind: a.B
    config:
      indexed: "{{ env['OTHER'] }}"
      got: "{{ env.get('MISSING', 'fallback') }}"
      piped: "{{ env.MISSING | default('other') }}"
      plain: "{{ env.get('OTHER') }}"
""",
        NAME="from-env",
        OTHER="value",
    )
    assert not document.faulty
    config = document.entries[0].config
    assert config.name == "from-env"
    assert config.config == {
        "indexed": "value",
        "got": "fallback",
        "piped": "other",
        "plain": "value",
    }


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        ("{{ env.MISSING }}", "MISSING is not set"),
        ("{{ 1 + 1 }}", "not supported"),
        ("{% if x %}", "not supported"),
        ("{{ env.LINES }}", "more than one line"),
    ],
)
def test_other_template_code_and_missing_variables_are_refused_with_their_line(
    expression: str, word: str
) -> None:
    document = read(f"plugins: []\n# two\nx: '{expression}'\n", LINES="a\nb")
    line, message = faults(document)[0]
    assert line == 3
    assert word in message


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("kind: external", "needs an mcp table"),
        ("kind: external, mcp: {proto: STDIO}, config: {a: 1}", "own server"),
        ("kind: external, grpc: {target: x}", "not supported"),
        ("kind: external, unix_socket: {path: x}", "not supported"),
        ("kind: a.B, mcp: {proto: STDIO}", "only kind external"),
    ],
)
def test_transports_belong_to_external_plugins(entry: str, word: str) -> None:
    document = read(f"plugins:\n  - {{name: p, {entry}}}\n")
    assert any(word in message for _, message in faults(document))
    assert document.entries == ()


def test_plugin_folders_are_texts() -> None:
    assert read("plugin_dirs: [a, b]\n").plugin_dirs == ("a", "b")
    assert read("plugin_dirs:\n").plugin_dirs == ()
    assert read("plugin_dirs: [5]\n").faulty
    assert read("plugin_dirs: x\n").faulty

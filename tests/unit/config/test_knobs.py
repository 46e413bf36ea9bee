from __future__ import annotations

import pytest

from kaged.base import JsonValue
from kaged.config.knobs import KNOB_TYPES, Knob, KnobFacts
from kaged.config.localconfig import ModelTrait
from requirements import requirement
from unit.config.trials import errors, manifest, manifest_problems, warnings

SCHEMA = """\
config_schema:
  type: object
  properties:
    a: {}
    recall_budget: { type: string, enum: [low, mid, high] }
    retain_every_n_turns: { type: integer }
    store: { type: string }
    thinking_model: { type: [string, "null"] }
system_config_schema:
  type: object
  properties: { api_token: { type: string } }
"""

SAMPLE = (
    SCHEMA
    + """\
# In kaged-plugin.yaml
knobs:
  recall_budget:
    type: enum
    label: "Recall budget"
    description: "Compute budget for memory recall operations."
    values: [low, mid, high]
    labels:
      low: "Low (fast, less context)"
      mid: "Mid (balanced)"
      high: "High (deep, slower)"
    default: mid
    binds_to: "config.recall_budget"     # which config field this knob writes

  retain_every_n_turns:
    type: int_range
    label: "Auto-retain frequency"
    description: "Save the transcript after every N user turns."
    min: 1
    max: 20
    step: 1
    default: 3
    binds_to: "config.retain_every_n_turns"

  store:
    type: path
    label: "Memory storage location"
    description: "Where memory files are stored."
    prefixes: ["config:", "project:"]
    default: "config:/memory"
    binds_to: "config.store"

  thinking_model:
    type: model_alias
    label: "Reflection model"
    description: "Model used for the reflect operation."
    filter: reasoning
    default: null
    binds_to: "config.thinking_model"
"""
)

VALID = {
    "range": "min: 0, max: 1, step: 0.1, default: 0.5",
    "int_range": "min: 1, max: 20, step: 1, default: 3",
    "enum": "values: [a, b], default: a",
    "boolean": "default: true",
    "text": "default: ''",
    "multiline": "default: ''",
    "model_alias": "default: null",
    "path": "default: 'config:/x', prefixes: ['config:']",
}


def text(kind: str, rest: str, common: str = "label: L, binds_to: config.a") -> str:
    return SCHEMA + f"knobs: {{ k: {{ type: {kind}, {common}, {rest} }} }}\n"


def knob(kind: str, rest: str | None = None) -> Knob:
    return manifest(text(kind, VALID[kind] if rest is None else rest)).value.knobs["k"]


def faults(kind: str, rest: str) -> list[str]:
    return [path for path, _ in errors(manifest_problems(text(kind, rest)))]


@requirement("PH-KNOB-01")
def test_the_documents_knobs_load_and_there_is_no_room_for_a_ui_of_ones_own() -> None:
    loaded = manifest(SAMPLE)
    assert loaded.warnings == ()
    assert list(loaded.value.knobs) == [
        "recall_budget",
        "retain_every_n_turns",
        "store",
        "thinking_model",
    ]
    for extra in ("html: '<b>'", "component: X", "render: ./ui.js"):
        assert faults("boolean", f"default: true, {extra}")


@requirement("PH-KNOB-03", "PH-KNOB-13")
def test_there_are_exactly_eight_types() -> None:
    assert sorted(KNOB_TYPES) == sorted(VALID)
    for kind in VALID:
        assert knob(kind).type == kind
    (unknown,) = manifest_problems(text("color", "default: red"))
    assert unknown.key_path == "knobs.k.type"
    assert unknown.fix == f"one of {', '.join(KNOB_TYPES)}"
    missing = SCHEMA + "knobs: { k: { label: L, binds_to: config.a, default: true } }\n"
    assert errors(manifest_problems(missing)) == [("knobs.k.type", "missing_key")]


@pytest.mark.parametrize("kind", ["range", "int_range"])
@requirement("PH-KNOB-04", "PH-KNOB-05")
def test_ranges_need_four_numbers(kind: str) -> None:
    parts = VALID[kind].split(", ")
    for gone in parts:
        rest = ", ".join(part for part in parts if part != gone)
        assert faults(kind, rest) == [f"knobs.k.{gone.partition(':')[0]}"]
        name = gone.partition(":")[0]
        for wrong in ("x", "'3'", "true", "null"):
            assert faults(kind, f"{rest}, {name}: {wrong}") == [f"knobs.k.{name}"]


@requirement("PH-KNOB-05")
def test_an_int_range_holds_whole_numbers() -> None:
    assert faults("int_range", "min: 1.5, max: 20, step: 1, default: 3") == ["knobs.k.min"]
    assert faults("int_range", "min: 1, max: 20, step: 1, default: '3'") == ["knobs.k.default"]
    assert faults("int_range", "min: 1, max: 20, step: 0.5, default: 3") == ["knobs.k.step"]


@requirement("PH-KNOB-06")
def test_an_enum_needs_values_and_a_default_and_may_have_labels() -> None:
    assert knob("enum", "values: [a, b], default: b, labels: { a: First }")
    assert faults("enum", "default: a") == ["knobs.k.values"]
    assert faults("enum", "values: [a]") == ["knobs.k.default"]
    for wrong in ("values: []", "values: a", "values: [1]", "values: [a, a]"):
        assert faults("enum", f"{wrong}, default: a")
    assert faults("enum", "values: [a], default: a, labels: [x]") == ["knobs.k.labels"]
    assert faults("enum", "values: [a], default: 1") == ["knobs.k.default"]


@requirement("PH-KNOB-07")
def test_a_boolean_has_a_true_or_false_default() -> None:
    assert knob("boolean", "default: false")
    for wrong in ("default: 'yes'", "default: yes", "default: 1", "default: null"):
        assert faults("boolean", wrong) == ["knobs.k.default"]
    assert faults("boolean", "description: d") == ["knobs.k.default"]


def test_texts_have_a_default_and_limits() -> None:
    assert knob("text", "default: abc, max_length: 3, pattern: '^[a-c]+$'")
    assert faults("text", "default: abc, pattern: '('") == ["knobs.k.pattern"]
    assert faults("text", "default: abcd, max_length: 3") == ["knobs.k.default"]
    assert faults("text", "default: xyz, pattern: '^[a-c]+$'") == ["knobs.k.default"]
    assert faults("text", "default: 5") == ["knobs.k.default"]
    assert faults("text", "default: a, max_length: x") == ["knobs.k.max_length"]
    assert knob("multiline", 'default: "a\\nb", max_length: 3')
    assert faults("multiline", 'default: "a\\nb", max_length: 2') == ["knobs.k.default"]
    assert faults("multiline", "default: a, pattern: x") == ["knobs.k.pattern"]


def test_model_and_path_knobs_are_declared_as_documented() -> None:
    assert knob("model_alias", "default: smart, filter: fast")
    assert faults("model_alias", "default: null, filter: slow") == ["knobs.k.filter"]
    assert faults("model_alias", "filter: any") == ["knobs.k.default"]
    assert faults("model_alias", "default: 5") == ["knobs.k.default"]
    assert knob(
        "path", "default: 'project:/x', prefixes: ['project:', 'config:'], must_exist: true"
    )
    for wrong in (
        "default: 'config:/x', prefixes: []",
        "default: 'config:/x', prefixes: ['file:']",
        "default: 'project:/x', prefixes: ['config:']",
        "default: '/abs', prefixes: ['config:']",
        "default: 'config:/../x', prefixes: ['config:']",
        "default: 'config:/x'",
        "prefixes: ['config:']",
        "default: 'config:/x', prefixes: ['config:'], must_exist: 1",
    ):
        assert faults("path", wrong)


@requirement("PH-KNOB-12")
@pytest.mark.parametrize("name", ["Recall-Budget", "recall-budget", "1x", "_x", "''", "a.b"])
def test_a_knobs_name_is_a_slug(name: str) -> None:
    body = (
        f"knobs: {{ {name}: {{ type: boolean, label: L, binds_to: config.a, default: true }} }}\n"
    )
    assert errors(manifest_problems(SCHEMA + body))
    assert manifest(SCHEMA + body.replace(name, "recall_budget2"))


@requirement("PH-KNOB-14")
def test_a_label_is_required_and_short() -> None:
    def common(label: str) -> str:
        return text("boolean", "default: true", f"binds_to: config.a, {label}")

    assert manifest(common(f"label: {'x' * 64}"))
    for wrong in (f"label: {'x' * 65}", "label: ''", "label: 5", "description: d"):
        assert errors(manifest_problems(common(wrong)))[0][0] == "knobs.k.label"


@requirement("PH-KNOB-15")
def test_a_description_is_optional_and_limited() -> None:
    assert knob("boolean").description == ""
    assert knob("boolean", f"default: true, description: {'x' * 280}")
    assert faults("boolean", f"default: true, description: {'x' * 281}") == ["knobs.k.description"]


@requirement("PH-KNOB-16")
@pytest.mark.parametrize(
    "target", ["recall_budget", "config", "config.", "config.a.b", "Config.a", "''", "5"]
)
def test_a_binding_has_the_form_config_field(target: str) -> None:
    body = text("boolean", "default: true", f"label: L, binds_to: {target}")
    assert errors(manifest_problems(body))[0][0] == "knobs.k.binds_to"
    missing = text("boolean", "default: true", "label: L")
    assert errors(manifest_problems(missing)) == [("knobs.k.binds_to", "missing_key")]


def test_a_binding_to_no_field_has_its_own_code() -> None:
    body = text("boolean", "default: true", "label: L, binds_to: config.nothing")
    assert errors(manifest_problems(body)) == [("knobs.k.binds_to", "knob_binds_to_unknown_field")]


@requirement("PH-KNOB-18")
@pytest.mark.parametrize("target", ["system_config.api_token", "config.api_token", "system_config"])
def test_a_knob_cannot_write_system_config(target: str) -> None:
    body = text("text", "default: ''", f"label: L, binds_to: {target}")
    assert errors(manifest_problems(body)) == [("knobs.k.binds_to", "knob_binds_to_system_config")]


@requirement("PH-KNOB-19")
@pytest.mark.parametrize(
    ("kind", "rest", "field", "fits"),
    [
        ("enum", "values: [a, b], default: a", "{type: string, enum: [a, b]}", True),
        ("enum", "values: [a, b], default: a", "{type: string, enum: [b, a]}", True),
        ("enum", "values: [a, b], default: a", "{type: string, enum: [a, c]}", False),
        ("enum", "values: [a, b], default: a", "{type: string}", False),
        ("enum", "values: [a, b], default: a", "{type: integer}", False),
        ("boolean", "default: true", "{type: boolean}", True),
        ("boolean", "default: true", "{type: string}", False),
        ("boolean", "default: true", "{}", True),
        ("range", VALID["range"], "{type: number}", True),
        ("range", VALID["range"], "{type: integer}", False),
        ("int_range", VALID["int_range"], "{type: number}", True),
        ("int_range", VALID["int_range"], "{type: string}", False),
        ("text", "default: ''", "{type: [string, 'null']}", True),
        ("text", "default: ''", "{type: [integer, 'null']}", False),
        ("path", VALID["path"], "{type: object}", False),
    ],
)
def test_a_mismatch_with_the_schema_is_a_warning_and_the_manifest_loads(
    kind: str, rest: str, field: str, fits: bool
) -> None:
    body = (
        f"config_schema: {{ properties: {{ a: {field} }} }}\n"
        f"knobs: {{ k: {{ type: {kind}, label: L, binds_to: config.a, {rest} }} }}\n"
    )
    loaded = manifest(body)
    expected = [] if fits else [("knobs.k", "knob_type_mismatch")]
    assert warnings(loaded.warnings) == expected


@requirement("PH-KNOB-25")
@pytest.mark.parametrize(
    ("kind", "rest", "path"),
    [
        ("int_range", "min: 1, max: 20, step: 1, default: 30", "knobs.k.default"),
        ("range", "min: 0, max: 1, step: 0.1, default: -1", "knobs.k.default"),
        ("range", "min: 2, max: 1, step: 0.1, default: 1.5", "knobs.k"),
        ("range", "min: 0, max: 1, step: 0, default: 1", "knobs.k.step"),
        ("int_range", "min: 0, max: 1, step: -1, default: 1", "knobs.k.step"),
        ("enum", "values: [a], default: b", "knobs.k.default"),
        ("text", "default: b, pattern: ^a", "knobs.k.default"),
        ("text", "default: bb, max_length: 1", "knobs.k.default"),
        ("path", "default: 'project:/x', prefixes: ['config:']", "knobs.k.default"),
    ],
)
def test_a_default_satisfies_its_own_knob(kind: str, rest: str, path: str) -> None:
    assert faults(kind, rest) == [path]


@requirement("PH-KNOB-26")
def test_labels_are_for_values_only() -> None:
    assert faults("enum", "values: [a], default: a, labels: { b: B }") == ["knobs.k"]


FACTS = KnobFacts(
    models={"smart": frozenset({ModelTrait.REASONING}), "tiny": frozenset({ModelTrait.FAST})},
    exists=lambda place: place == "config:/here",
)


@requirement("PH-KNOB-20")
@pytest.mark.parametrize(
    ("kind", "rest", "good", "bad"),
    [
        ("range", VALID["range"], [0, 0.5, 1], [-0.1, 1.1, "0.5", True, None]),
        ("int_range", VALID["int_range"], [1, 20], [0, 21, 1.5, "3", True]),
        ("enum", VALID["enum"], ["a", "b"], ["c", 1, None]),
        ("boolean", VALID["boolean"], [True, False], [1, "true", None]),
        (
            "text",
            "default: ab, max_length: 3, pattern: '^a'",
            ["a", "abc"],
            ["abcd", "b", "a\nb", 5],
        ),
        ("multiline", "default: '', max_length: 5", ["a\nb", ""], ["a\nb\nc\n", 5, None]),
        ("model_alias", "default: null", ["smart", "tiny", None], ["gone", 5]),
        ("model_alias", "default: null, filter: reasoning", ["smart"], ["tiny"]),
        ("model_alias", "default: smart", ["tiny"], [None]),
        ("path", VALID["path"], ["config:/y/z"], ["project:/y", "/y", "y", "config:/../y", 5]),
        (
            "path",
            "default: 'config:/x', prefixes: ['config:'], must_exist: true",
            ["config:/here"],
            ["config:/gone"],
        ),
    ],
)
def test_a_knob_judges_values_by_its_bounds(
    kind: str, rest: str, good: list[JsonValue], bad: list[JsonValue]
) -> None:
    found = knob(kind, rest)
    assert [value for value in good if not found.decide(value, FACTS).allowed] == []
    assert [value for value in bad if found.decide(value, FACTS).allowed] == []
    assert all(found.decide(value, FACTS).detail for value in bad)


def test_a_pattern_made_to_run_forever_says_no_instead() -> None:
    found = knob("text", "default: '', pattern: '^(a|a|aa)*$'")
    assert not found.decide("a" * 60 + "b", FACTS).allowed


def test_a_knob_knows_the_field_it_writes() -> None:
    assert knob("boolean").bound_field == "a"

from __future__ import annotations

import pytest

from kaged.config import ConfigFileInvalid, load_local_config, resolve_agents
from kaged.config.localconfig import LocalConfig, ModelTrait
from kaged.config.reading import Loaded
from kaged.config.semver import Version
from requirements import requirement
from unit.config.trials import OperatorFiles, ProjectFolder

SAMPLE = """\
# local.toml
[plugins."@kaged/memory-hindsight"]
api_token = "${KAGED_HINDSIGHT_TOKEN}"

[plugins."@example/smart-compactor"]
license_key = "${SMART_COMPACTOR_KEY}"
"""


@requirement("PH-CONF-10")
def test_secrets_are_found_by_package_not_by_the_declaration_key(
    operator: OperatorFiles, project: ProjectFolder
) -> None:
    local = operator.local(
        SAMPLE + '[plugins.memory]\napi_token = "of another plugin"\n',
        {"KAGED_HINDSIGHT_TOKEN": "tok", "SMART_COMPACTOR_KEY": "key"},
    )
    loaded = project.load(
        project.agent('plugins: { memory: { package: "@kaged/memory-hindsight" } }\n')
    )
    (plugin,) = resolve_agents(loaded, operator.config(""), local).primary.plugins
    assert plugin.key == "memory"
    settings = local.value.plugin(plugin.package.value, plugin.name)
    assert settings.values.reveal() == {"api_token": "tok"}


def test_variables_are_replaced_when_the_file_is_loaded(operator: OperatorFiles) -> None:
    local = operator.local(
        """\
        [plugins.x]
        a = "${A}"
        b = "pre-${A}-${B}-post"
        c = "$${A} $A $"
        d = ["${A}", { deep = "${B}" }]
        n = 5
        """,
        {"A": "one", "B": "${A}"},
    )
    assert local.value.plugins.good["x"].values.reveal() == {
        "a": "one",
        "b": "pre-one-${A}-post",
        "c": "${A} $A $",
        "d": ["one", {"deep": "${A}"}],
        "n": 5,
    }


def test_a_variable_that_is_set_to_nothing_is_set(operator: OperatorFiles) -> None:
    local = operator.local('[plugins.x]\na = "${A}"\n', {"A": ""})
    assert local.value.plugins.good["x"].values.reveal() == {"a": ""}


def test_an_unset_variable_breaks_its_own_section_only(operator: OperatorFiles) -> None:
    loaded = operator.local(
        SAMPLE + '[models.m]\nmodel = "a:b"\napi_key = "${ALSO_UNSET}"\n',
        {"KAGED_HINDSIGHT_TOKEN": "tok"},
    )
    first, second = loaded.warnings
    assert first.file == str(operator.local_toml)
    assert first.key_path == 'plugins."@example/smart-compactor".license_key'
    assert "SMART_COMPACTOR_KEY" in first.message
    assert (first.line, first.code) == (6, "variable_unset")
    assert second.key_path == "models.m.api_key"
    assert loaded.value.plugin("@kaged/memory-hindsight", "memory-hindsight").values.reveal()
    with pytest.raises(ConfigFileInvalid, match="SMART_COMPACTOR_KEY"):
        loaded.value.plugin("@example/smart-compactor", "smart-compactor")
    with pytest.raises(ConfigFileInvalid, match="ALSO_UNSET"):
        loaded.value.models.get("m")


@pytest.mark.parametrize("text", ["${", "${A", "${}", "${A-B}", "${A:-x}", "a ${ b"])
def test_a_malformed_variable_is_never_passed_on_as_text(
    operator: OperatorFiles, text: str
) -> None:
    loaded = operator.local(f'[plugins.x]\na = "{text}"\n', {"A": "one", "A-B": "no"})
    assert loaded.value.plugins.broken["x"][0].code == "bad_variable"


@requirement("PH-CONF-12")
def test_a_secret_written_in_place_is_accepted(operator: OperatorFiles) -> None:
    loaded = operator.local('[plugins."@k/x"]\napi_token = "literal"\n')
    assert loaded.value.plugin("@k/x", "x").values.reveal() == {"api_token": "literal"}


@requirement("AT-AMB-48")
def test_both_operator_files_are_read_each_for_its_own(operator: OperatorFiles) -> None:
    config = operator.config('[lsp.servers.go]\ncommand = ["gopls"]\n').value
    local = operator.local('[models.smart]\nmodel = "openai:gpt"\n[plugins.x]\ntoken = "t"\n').value
    assert config.lsp.servers["go"].command == ("gopls",)
    assert local.models.good["smart"].model == "openai:gpt"
    assert local.plugins.good["x"].values.reveal() == {"token": "t"}
    misplaced = operator.config('[models.smart]\nmodel = "openai:gpt"\n')
    assert "local.toml" in misplaced.warnings[0].fix


@requirement("PH-AMB-26")
def test_host_keys_are_kept_apart_from_the_plugins_own(operator: OperatorFiles) -> None:
    local = operator.local(
        """\
        [plugins.memory-markdown]
        installed = "1.2.3"
        local = false
        enabled = true
        grants = ["write:fs:config:/memory"]
        token = "by name"
        [plugins.other]
        token = "only by name"
        [plugins."@kaged/both"]
        token = "by package"
        [plugins.both]
        installed = "2.0.0"
        token = "stale"
        """
    ).value
    settings = local.plugin("@kaged/memory-markdown", "memory-markdown")
    assert settings.installed == Version(1, 2, 3)
    assert (settings.local, settings.enabled) == (False, True)
    assert settings.grants.texts == ("write:fs:config:/memory",)
    assert settings.values.reveal() == {"token": "by name"}
    assert local.plugin("@x/other", "other").values.reveal() == {"token": "only by name"}
    both = local.plugin("@kaged/both", "both")
    assert both.values.reveal() == {"token": "by package"}
    assert both.installed == Version(2, 0, 0)
    assert local.plugin("@k/unknown", "unknown").values.reveal() == {}
    # The plugin's name is the last segment of its package.
    from kaged.config.pluginwords import plugin_name_of

    assert plugin_name_of("@kaged/memory-markdown") == "memory-markdown"
    assert plugin_name_of("plain") == "plain"
    # Those keys cannot be fields of a plugin.
    from unit.config.trials import errors, manifest_problems

    schema = "system_config_schema: { type: object, properties: { installed: {} } }\n"
    assert ("system_config_schema.properties", "host_key") in errors(manifest_problems(schema))


def test_models_have_settings_and_traits(operator: OperatorFiles) -> None:
    local = operator.local(
        """\
        [models.smart]
        model = "openai:gpt-5"
        base_url = "http://localhost:11434/v1"
        key = "${K}"
        context_window = 128000
        traits = ["reasoning"]
        [models.smart.settings]
        temperature = 0.2
        [models.demo]
        model = "scripted"
        """,
        {"K": "sk-1"},
    )
    smart = local.value.models.good["smart"]
    assert smart.api_key is not None
    assert smart.api_key.reveal() == "sk-1"
    assert (smart.context_window, smart.traits) == (128000, (ModelTrait.REASONING,))
    assert smart.settings == {"temperature": 0.2}
    assert local.value.models.good["demo"].model == "scripted"
    assert "sk-1" not in repr(local)


@pytest.mark.parametrize(
    "text",
    [
        'model = "gpt"',
        'base_url = "x"',
        'model = "a:b"\ncontext_window = 1',
        'model = "a:b"\ntraits = ["slow"]',
        'model = "a:b"\nkey = "x"\napi_key = "y"',
        'model = "a:b"\nbase_url = "ftp://x"',
    ],
)
def test_a_wrong_model_is_out_of_use_and_says_why(operator: OperatorFiles, text: str) -> None:
    local = operator.local(f'[models.bad]\n{text}\n[models.good]\nmodel = "a:b"\n').value
    assert list(local.models) == ["good"]
    assert local.models.broken["bad"]


def test_values_never_appear_in_messages_or_texts(operator: OperatorFiles) -> None:
    loaded = operator.local(
        """\
        hunter2 = 1
        [plugins.x]
        installed = "hunter2"
        grants = ["hunter2"]
        local = "hunter2"
        when = 2026-01-01
        token = "hunter2"
        [models.m]
        model = "hunter2"
        traits = ["hunter2"]
        [models.n]
        model = "a:b"
        api_key = "hunter2"
        [secrets]
        s = "hunter2"
        """
    )
    messages = [f"{warning.message} {warning.fix}" for warning in loaded.warnings]
    assert len(messages) >= 6
    assert not any("hunter2" in message for message in messages)
    assert "hunter2" not in repr(loaded.value)
    assert loaded.value.secrets.good["s"].reveal() == "hunter2"


def test_an_open_or_foreign_file_is_refused_and_an_absent_one_is_empty(
    operator: OperatorFiles,
) -> None:
    assert load_local_config(operator.local_toml, {}).value == LocalConfig()
    operator.local("")
    operator.local_toml.chmod(0o640)
    with pytest.raises(ConfigFileInvalid, match="chmod 600"):
        load_local_config(operator.local_toml, {})


def test_unknown_sections_are_warned_about(operator: OperatorFiles) -> None:
    loaded: Loaded[LocalConfig] = operator.local("[model.x]\n[plugin.y]\n[daemon]\n")
    assert [(w.key_path, w.code) for w in loaded.warnings] == [
        ("model", "unknown_key"),
        ("plugin", "unknown_key"),
        ("daemon", "unknown_key"),
    ]
    assert "config.toml" in loaded.warnings[2].fix

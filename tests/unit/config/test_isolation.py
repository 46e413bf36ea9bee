from __future__ import annotations

from kaged.base import JsonValue
from kaged.config import Loaded, describe, resolve_agents
from kaged.config.agents import AgentTree
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.localconfig import LocalConfig
from kaged.config.pluginwords import Hook, Isolation
from requirements import requirement
from unit.config.trials import ProjectFolder, errors, warnings

CASCADE_SAMPLE = """\
primary:
  model: m
  system_prompt: p
  plugins:
    memory:
      package: "@kaged/memory-hindsight"
      isolation: project
      hooks:
        - on_session_start
        - on_session_idle
        - pre_compact
        - post_compact
      config:
        recall_budget: mid
        tags: [primary]

  subagents:
    researcher:
      model: m
      system_prompt: p
      plugins:
        memory:
          # package + isolation inherited from primary's declaration
          hooks: [ on_session_idle ]
          config:
            tags: [researcher]
"""


def resolve(project: ProjectFolder, text: str) -> AgentTree:
    return resolve_agents(project.load(text), Loaded(DaemonConfig()), Loaded(LocalConfig()))


def shared(extra: str = "", subagent: str = "plugins: { memory: {} }\n") -> tuple[str, str]:
    return f"plugins: {{ memory: {{ package: '@k/m', isolation: project{extra} }} }}\n", subagent


@requirement("PH-ISO-07", "PH-ISO-11", "PH-CONF-15")
def test_a_subagent_overrides_what_it_names_and_inherits_the_rest(project: ProjectFolder) -> None:
    tree = resolve(project, CASCADE_SAMPLE)
    (base,) = tree.primary.plugins
    (override,) = tree["primary.subagents.researcher"].plugins
    assert override.package.value == base.package.value == "@kaged/memory-hindsight"
    assert override.isolation.value is base.isolation.value is Isolation.PROJECT
    assert override.hooks.value == (Hook.ON_SESSION_IDLE,)
    # The list is replaced, not joined; the field that is not named is the primary's.
    assert override.config == {"recall_budget": "mid", "tags": ["researcher"]}
    assert base.config == {"recall_budget": "mid", "tags": ["primary"]}
    assert (override.inherits, base.inherits) == (True, False)
    assert override.config_origins["tags"].line == 26
    assert override.config_origins["recall_budget"].line == 14
    assert override.package.origin.line == 6


@requirement("PH-ISO-10")
def test_the_resolved_declaration_is_visible_with_its_origins(project: ProjectFolder) -> None:
    dump = describe(resolve(project, CASCADE_SAMPLE))
    agents = dump["agents"]
    assert isinstance(agents, list)
    researcher = agents[1]
    assert isinstance(researcher, dict)
    plugins = researcher["plugins"]
    assert isinstance(plugins, list)
    file = str(project.file)
    expected: JsonValue = {
        "key": "memory",
        "name": "memory-hindsight",
        "package": {"value": "@kaged/memory-hindsight", "from": f"{file}:6"},
        "isolation": {"value": "project", "from": f"{file}:7"},
        "hooks": {"value": ["on_session_idle"], "from": f"{file}:24"},
        "source": None,
        "version": None,
        "inherits": True,
        "config": {
            "recall_budget": {"value": "mid", "from": f"{file}:14"},
            "tags": {"value": ["researcher"], "from": f"{file}:26"},
        },
    }
    assert plugins == [expected]


@requirement("PH-ISO-02")
def test_isolation_is_agent_by_default_and_nothing_but_agent_or_project(
    project: ProjectFolder,
) -> None:
    tree = resolve(project, project.agent("plugins: { m: { package: m } }\n"))
    assert tree.primary.plugins[0].isolation.value is Isolation.AGENT
    assert str(tree.primary.plugins[0].isolation.origin) == "default"
    for word in ("agent", "project"):
        tree = resolve(
            project, project.agent(f"plugins: {{ m: {{ package: m, isolation: {word} }} }}\n")
        )
        assert tree.primary.plugins[0].isolation.value.value == word
    assert errors(
        project.problems(project.agent("plugins: { m: { package: m, isolation: global } }\n"))
    ) == [("primary.plugins.m.isolation", "invalid_value")]


@requirement("PH-ISO-06")
def test_the_base_must_name_its_package(project: ProjectFolder) -> None:
    text = project.agent("plugins: { m: { isolation: project } }\n", "plugins: { m: {} }\n")
    assert errors(project.problems(text)) == [("primary.plugins.m.package", "missing_key")]


@requirement("PH-ISO-08")
def test_package_and_isolation_cannot_differ_below(project: ProjectFolder) -> None:
    for field, value in (("package", "'@k/other'"), ("isolation", "agent")):
        text = project.agent(*shared(subagent=f"plugins: {{ memory: {{ {field}: {value} }} }}\n"))
        (problem,) = project.problems(text)
        assert problem.key_path == f"primary.subagents.coder.plugins.memory.{field}"
        assert problem.code == "isolation"
    # Saying the same again is fine.
    same = "plugins: { memory: { package: '@k/m', isolation: project } }\n"
    assert project.load(project.agent(*shared(subagent=same)))


@requirement("PH-ISO-09")
def test_under_agent_isolation_every_declaration_stands_alone(project: ProjectFolder) -> None:
    base = "plugins: { memory: { package: '@k/m', config: { a: 1 }, hooks: [pre_compact] } }\n"
    text = project.agent(base, "plugins: { memory: { config: { b: 2 } } }\n")
    assert errors(project.problems(text)) == [
        ("primary.subagents.coder.plugins.memory.package", "missing_key")
    ]
    tree = resolve(
        project, project.agent(base, "plugins: { memory: { package: '@k/m', config: { b: 2 } } }\n")
    )
    (below,) = tree["primary.subagents.coder"].plugins
    assert below.config == {"b": 2}
    assert below.hooks.value is None
    assert not below.inherits


@requirement("PH-AMB-25")
def test_inheritance_exists_only_from_a_shared_declaration_of_the_primary(
    project: ProjectFolder,
) -> None:
    # Identical restatement is fine, a different one is refused, a missing base is refused.
    same = "plugins: { memory: { package: '@k/m', isolation: project } }\n"
    assert project.load(project.agent(*shared(subagent=same)))
    other = "plugins: { memory: { package: '@k/x' } }\n"
    assert errors(project.problems(project.agent(*shared(subagent=other))))
    for base in ("", "plugins: { memory: { package: '@k/m' } }\n"):
        lonely = project.agent(base, same)
        assert errors(project.problems(lonely)) == [
            ("primary.subagents.coder.plugins.memory", "isolation")
        ]
    # The base is always the primary, also for nested subagents.
    nested = project.agent(
        "plugins: { memory: { package: '@k/m', isolation: project, config: { a: 1, b: 1 } } }\n",
        """\
        plugins: { memory: { config: { a: 2 } } }
        subagents:
          deep:
            model: m
            system_prompt: p
            plugins: { memory: { config: { b: 3 } } }
        """,
    )
    tree = resolve(project, nested)
    deep = tree["primary.subagents.coder.subagents.deep"].plugins[0]
    assert deep.config == {"a": 1, "b": 3}
    # The document's own sample gives a subagent on_session_idle: it loads with the warning.
    loaded = project.load(CASCADE_SAMPLE)
    (warning,) = loaded.warnings
    assert warning.code == "plugin.hook.illegal"
    assert warning.key_path == "primary.subagents.researcher.plugins.memory.hooks"
    assert "on_session_idle" in warning.message


def test_primary_only_hooks_that_are_merely_inherited_are_left_out_silently(
    project: ProjectFolder,
) -> None:
    text = project.agent(*shared(", hooks: [on_session_start, pre_compact]"))
    assert warnings(project.load(text).warnings) == []
    (below,) = resolve(project, text)["primary.subagents.coder"].plugins
    assert below.hooks.value == (Hook.PRE_COMPACT,)


def test_an_agent_that_does_not_declare_the_plugin_does_not_have_it(project: ProjectFolder) -> None:
    tree = resolve(project, project.agent(*shared(subagent="description: none\n")))
    assert tree["primary.subagents.coder"].plugins == ()


def test_source_and_version_are_inherited_too(project: ProjectFolder) -> None:
    text = project.agent(*shared(", source: ./p, version: ^1.0"))
    (below,) = resolve(project, text)["primary.subagents.coder"].plugins
    assert below.source.value is not None
    assert below.source.value.location == "p"
    assert below.version.value is not None
    assert below.version.value.text == "^1.0"

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kaged.config import ConfigFileInvalid, Severity, load_project
from kaged.config.cageblock import CageWord
from kaged.config.project import (
    CompactionStrategy,
    TodoReview,
    parse_project,
    slugify,
)
from kaged.config.workflows import Invoker
from requirements import requirement
from unit.config.trials import ProjectFolder, errors

RESOLUTION_SAMPLE = """\
# Root agent — gets kaged.issue.* and kaged.workflow.* by default
primary:
  model: smart-generalist
  system_prompt: project:/prompts/primary.md
  cage: disabled
  # tools: omitted → role-based defaults only (kaged.issue.*, kaged.workflow.*)
  subagents:
    coder:
      model: smart-fast
      system_prompt: project:/prompts/coder.md
      cage:
        fs: [{ mode: rw, path: ./src }]
        net: { allow: [] }
        state: ephemeral
      tools:
        "file.*": { enabled: true }
        "search.*": { enabled: true }
        "lsp.*": { enabled: true }
        # kaged.issue.create: { enabled: true }  ← PARSE ERROR: root-only
"""


@requirement("AT-DSL-01")
def test_the_documented_sample_loads_and_the_top_level_is_checked(project: ProjectFolder) -> None:
    project.put("prompts/primary.md")
    project.put("prompts/coder.md")
    loaded = project.load(RESOLUTION_SAMPLE)
    assert loaded.warnings == ()
    assert loaded.value.dsl.version == 1
    assert loaded.value.slug == loaded.value.name == "sample"
    assert loaded.value.primary.model == "smart-generalist"

    assert errors(project.problems("version: 1\n")) == [("primary", "missing_key")]
    assert errors(project.problems("version: 2\n" + project.agent())) == [
        ("version", "invalid_value")
    ]
    assert errors(project.problems("version: true\n" + project.agent())) == [
        ("version", "wrong_type")
    ]
    (unknown,) = project.problems(project.agent() + "workflow: {}\n")
    assert (unknown.key_path, unknown.code) == ("workflow", "unknown_key")
    assert "workflows" in unknown.fix

    assert project.load("project: my-thing\n" + project.agent()).value.slug == "my-thing"
    titled = project.load("project: {name: My Thing, description: Fun.}\n" + project.agent()).value
    assert (titled.slug, titled.name, titled.description) == ("my-thing", "My Thing", "Fun.")
    assert errors(project.problems("project: My Thing\n" + project.agent())) == [
        ("project", "invalid_value")
    ]
    everything = "lsp: {servers: []}\ndap: {adapters: []}\nworkflows: {}\n" + project.agent()
    assert project.load(everything).value.workflows == {}


@requirement("AT-DSL-02")
def test_an_agent_has_the_documented_keys_and_no_others(project: ProjectFolder) -> None:
    full = project.agent(
        """\
        description: The root.
        cage: disabled
        tools: { "file.*": { enabled: true } }
        plugins: { memory: { package: "@kaged/memory-markdown" } }
        compaction: { strategy: summarize, threshold: 0.8 }
        max_steps: 7
        """,
        """\
        description: Writes code.
        cage: { fs: [ { mode: ro, path: . } ] }
        todo_review: auto
        subagents:
          linter: { model: tiny, system_prompt: Lint. }
        """,
    )
    primary = project.load(full).value.primary
    assert primary.max_steps == 7
    assert primary.compaction.strategy is CompactionStrategy.SUMMARIZE
    assert primary.subagents["coder"].todo_review is TodoReview.AUTO
    assert primary.subagents["coder"].subagents["linter"].model == "tiny"
    assert primary.subagents["coder"].subagents["linter"].max_steps == 50

    (typo, missing) = project.problems("primary:\n  modle: x\n  system_prompt: y\n")
    assert {(p.key_path, p.code) for p in (typo, missing)} == {
        ("primary.modle", "unknown_key"),
        ("primary.model", "missing_key"),
    }
    assert any("model" in p.fix for p in (typo, missing))
    assert errors(project.problems("primary: {model: x}\n")) == [
        ("primary.system_prompt", "missing_key")
    ]


@requirement("AT-DSL-02")
@pytest.mark.parametrize("depth", ["primary", "primary.subagents.coder"])
@pytest.mark.parametrize(
    ("text", "where", "code"),
    [
        ("descripton: x", "descripton", "unknown_key"),
        ("max_step: 7", "max_step", "unknown_key"),
        ("cage: { fss: [] }", "cage.fss", "unknown_key"),
        (
            "cage: { fs: [ { mode: ro, path: . }, { mod: ro, path: . } ] }",
            "cage.fs[1].mod",
            "unknown_key",
        ),
        ("tools: { file.*: { enable: true } }", 'tools."file.*"', "wrong_type"),
        ("plugins: { memory: { packages: x } }", "plugins.memory.packages", "unknown_key"),
        ("compaction: { strateg: summarize }", "compaction.strateg", "unknown_key"),
        ("compaction: { strategy: delegate }", "compaction.delegate", "missing_key"),
        (
            "compaction: { strategy: delegate, delegate: { plugin: nobody } }",
            "compaction.delegate.plugin",
            "unknown_plugin",
        ),
    ],
)
def test_a_fault_in_any_part_of_an_agent_is_told_where_it_stands(
    project: ProjectFolder, depth: str, text: str, where: str, code: str
) -> None:
    whole = project.agent(text + "\n") if depth == "primary" else project.agent("", text + "\n")
    assert (f"{depth}.{where}", code) in errors(project.problems(whole))


@pytest.mark.parametrize("key", ["Coder", "a.b", "a b", "1x", "-x", "", "ä"])
def test_a_subagent_key_that_is_no_slug_is_refused(project: ProjectFolder, key: str) -> None:
    text = project.agent() + f'  subagents:\n    "{key}": {{model: m, system_prompt: p}}\n'
    (problem,) = project.problems(text)
    assert problem.key_path.startswith("primary.subagents.")
    assert problem.line == 5


@requirement("AT-DSL-04")
def test_prompts_are_text_or_files_of_the_project(project: ProjectFolder) -> None:
    project.put("prompts/primary.md", "From the root.")
    project.put(".kaged/prompts/own.md", "From config.")

    def prompt(value: str) -> str:
        text = f"primary:\n  model: m\n  system_prompt: {value}\n"
        return project.load(text).value.primary.system_prompt.text

    assert prompt("project:/prompts/primary.md") == "From the root."
    assert prompt("config:/prompts/own.md") == "From config."
    assert prompt("You are kind.") == "You are kind."
    assert prompt('"project: do this"') == "project: do this"
    for bad in (
        "project:/../x",
        "config:/../project.yaml",
        "config:/prompts/../../prompts/primary.md",
    ):
        (problem,) = project.problems(f"primary:\n  model: m\n  system_prompt: {bad}\n")
        assert (problem.key_path, problem.line) == ("primary.system_prompt", 3)
    # The same prefixes name places elsewhere in the file.
    cage = project.agent(
        "cage: { fs: [ {mode: ro, path: 'project:/docs'}, {mode: ro, path: 'config:/x'} ] }\n"
    )
    spec = project.load(cage).value.primary.cage
    assert spec is not None
    assert not isinstance(spec, CageWord)
    assert [entry.path for entry in spec.fs] == ["docs", ".kaged/x"]
    (problem,) = project.problems(
        project.agent("cage: { fs: [ {mode: ro, path: 'config:/../../x'} ] }\n")
    )
    assert problem.key_path == "primary.cage.fs[0].path"


def test_a_prompt_file_that_leaves_its_base_by_a_link_is_refused(project: ProjectFolder) -> None:
    outside = project.root.parent / "secret.md"
    outside.write_text("secret", encoding="utf-8")
    project.put("x/README.md")
    (project.root / "link.md").symlink_to(outside)
    (project.root / ".kaged" / "up.md").symlink_to(project.root / "x" / "README.md")
    for location in ("project:/link.md", "config:/up.md"):
        (problem,) = project.problems(f"primary: {{model: m, system_prompt: '{location}'}}")
        assert problem.code == "file_outside_project"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (None, "file_missing"),
        ("", "invalid_value"),
        (" \n", "invalid_value"),
    ],
)
def test_a_prompt_file_that_is_missing_or_blank_is_a_problem_of_its_key(
    project: ProjectFolder, make: str | None, code: str
) -> None:
    if make is not None:
        project.put("p.md", make)
    (problem,) = project.problems("primary:\n  model: m\n  system_prompt: project:/p.md\n")
    assert (problem.code, problem.key_path, problem.line) == (code, "primary.system_prompt", 3)


def test_a_prompt_that_looks_like_a_file_is_pointed_out(project: ProjectFolder) -> None:
    (warning,) = project.load("primary: {model: m, system_prompt: ./prompts/a.md}").warnings
    assert warning.code == "prompt_looks_like_path"
    assert "project:/prompts/a.md" in warning.fix


@requirement("AT-RES-01", "AT-DSL-08", "AT-DSL-09")
def test_tools_and_plugins_belong_to_agents_not_to_the_project(project: ProjectFolder) -> None:
    memory = project.load(
        project.agent(
            """\
            plugins:
              memory:
                package: "@kaged/memory-markdown"
                hooks: [ on_session_start ]
                config: { store: "config:/memory" }
            tools:
              "memory-markdown.recall": { enabled: false }   # last-resort disable
            """
        )
    ).value.primary
    assert memory.plugins["memory"].package == "@kaged/memory-markdown"
    assert memory.plugins["memory"].isolation is None  # the default, agent, is decided later
    assert [(rule.pattern, rule.enabled) for rule in memory.tools] == [
        ("memory-markdown.recall", False)
    ]
    for key in ("tools", "plugins"):
        (problem,) = project.problems(f"{key}: {{}}\n" + project.agent())
        assert (problem.key_path, problem.code, problem.line) == (key, "unknown_key", 1)
        assert f"primary.{key}" in problem.fix
    for bad in (
        "{package: p, isolation: global}",
        "{package: p, hooks: [on_compact]}",
        "{package: p, config: [1]}",
        "{package: p, wat: 1}",
        "{package: 'A B'}",
        "x",
    ):
        assert errors(project.problems(project.agent(f"plugins: {{ memory: {bad} }}\n")))


@requirement("AT-RES-06")
@pytest.mark.parametrize(
    "value",
    [
        "true",
        "{enabled: 'yes'}",
        "{enabled: yes}",
        "{enabled: 1}",
        "{}",
        "{enabled: true, note: x}",
        "[enabled]",
        "null",
    ],
)
def test_a_tool_switch_has_one_shape(project: ProjectFolder, value: str) -> None:
    (problem,) = project.problems(project.agent(f'tools: {{ "file.*": {value} }}\n'))
    assert problem.key_path.startswith('primary.tools."file.*"')
    assert project.load(project.agent('tools: { "file.*": {enabled: false} }\n'))


@pytest.mark.parametrize(
    "name", ["", "file read", "file..read", ".x", "file.[ab]", "fi?e", "a" * 201]
)
def test_a_tool_name_that_can_match_nothing_is_refused(project: ProjectFolder, name: str) -> None:
    assert errors(project.problems(project.agent(f'tools: {{ "{name}": {{enabled: true}} }}\n')))


@requirement("AT-RES-11", "AT-SCOPE-02", "AT-AMB-33")
@pytest.mark.parametrize(
    ("pattern", "tool"),
    [
        ("kaged.issue", "kaged.issue"),
        ("kaged.issue.create", "kaged.issue.create"),
        ("kaged.workflow.trigger", "kaged.workflow.trigger"),
        ("kaged.todo", "kaged.todo"),
        ("kaged.ask", "kaged.ask"),
        ("kaged.form", "kaged.form"),
        ("kaged.issue.*", "kaged.issue."),
        ("kaged.*", "kaged.issue"),
        ("*", "kaged.issue"),
        ("*.create", "kaged.issue.create"),
        ("k*d.w*", "kaged.workflow."),
    ],
)
def test_root_only_tools_cannot_be_enabled_below_the_root(
    project: ProjectFolder, pattern: str, tool: str
) -> None:
    switch = f'tools: {{ "{pattern}": {{enabled: true}} }}\n'
    (problem,) = project.problems(project.agent("", switch))
    assert problem.code == "principal_scope"
    assert "primary.subagents.coder" in problem.message
    assert tool in problem.message
    assert problem.line == 8
    # Switching off is harmless there, and the root may have them.
    assert project.load(project.agent("", switch.replace("true", "false")))
    assert project.load(project.agent(switch))
    # Of several entries the one that is wrong is pointed at.
    several = f'tools:\n  file.read: {{enabled: true}}\n  "{pattern}": {{enabled: true}}\n'
    (problem,) = project.problems(project.agent("", several))
    assert problem.line == 10


def test_a_checkpoint_and_ordinary_globs_are_fine_below_the_root(project: ProjectFolder) -> None:
    switches = (
        'tools: { "kaged.checkpoint": {enabled: true}, "file.*": {enabled: true}, '
        '"kaged.check*": {enabled: true}, "web-kit.getUser": {enabled: true} }\n'
    )
    assert (
        len(project.load(project.agent("", switches)).value.primary.subagents["coder"].tools) == 4
    )


@requirement("AT-RES-15")
@pytest.mark.parametrize("name", ["agent-coder", "agent-*", "agent-nobody"])
def test_synthetic_agent_tools_cannot_be_switched(project: ProjectFolder, name: str) -> None:
    for enabled in ("true", "false"):
        text = project.agent(f'tools: {{ "{name}": {{enabled: {enabled}}} }}\n', "")
        (problem,) = project.problems(text)
        assert problem.code == "synthetic_tool"
        assert "subagents" in problem.message
        assert "remove" in problem.fix


@requirement("AT-DSL-10")
def test_a_delegate_names_a_plugin_of_the_same_agent(project: ProjectFolder) -> None:
    plugins = 'plugins: { memory: { package: "@kaged/smart-compactor" } }\n'
    for named in ("memory", "smart-compactor", '"@kaged/smart-compactor"'):
        for strategy in ("", "strategy: delegate, "):
            block = f"compaction: {{ {strategy}delegate: {{ plugin: {named} }} }}\n"
            assert project.load(project.agent(plugins + block))
    assert project.load(project.agent("compaction: {}\n"))
    assert project.load(project.agent("compaction: { strategy: drop, threshold: 5000 }\n"))
    (undeclared,) = project.problems(
        project.agent(plugins + "compaction: { delegate: { plugin: other } }\n")
    )
    assert undeclared.key_path == "primary.compaction.delegate.plugin"
    # Declared on the primary is not declared on the subagent.
    (elsewhere,) = project.problems(
        project.agent(plugins, "compaction: { delegate: { plugin: memory } }\n")
    )
    assert elsewhere.key_path == "primary.subagents.coder.compaction.delegate.plugin"
    (alone,) = project.problems(project.agent("compaction: { strategy: delegate }\n"))
    assert (alone.key_path, alone.code) == ("primary.compaction.delegate", "missing_key")
    for bad in (
        "{strategy: compress}",
        "{threshold: 0}",
        "{threshold: -1}",
        "{threshold: high}",
        "{delegate: memory}",
        "{wat: 1}",
    ):
        assert errors(project.problems(project.agent(f"compaction: {bad}\n")))


@requirement("AT-DSL-12")
def test_language_servers_are_unique_lists_of_words(project: ProjectFolder) -> None:
    sample = """\
        # in .kaged/project.yaml
        lsp:
          servers:
            - lang: typescript
              command: ["typescript-language-server", "--stdio"]
            - lang: python
              command: ["pyright-langserver", "--stdio"]
            - lang: rust
              command: ["rust-analyzer"]
        primary: {model: m, system_prompt: p}
        """
    servers = project.load(sample).value.dsl.lsp.servers
    assert [server.lang for server in servers] == ["typescript", "python", "rust"]
    assert servers[0].command == ("typescript-language-server", "--stdio")
    for servers_text, path in (
        ("[{lang: a, command: [x]}, {lang: a, command: [y]}]", "lsp.servers[1].lang"),
        ("[{lang: a, command: []}]", "lsp.servers[0].command"),
        ("[{lang: a, command: x --stdio}]", "lsp.servers[0].command"),
        ("[{lang: a, command: [1]}]", "lsp.servers[0].command[0]"),
        ("[{lang: a, command: ['']}]", "lsp.servers[0].command[0]"),
        ("[{lang: a}]", "lsp.servers[0].command"),
        ("[{command: [x]}]", "lsp.servers[0].lang"),
        ("[{lang: a, command: [x], wat: 1}]", "lsp.servers[0].wat"),
    ):
        found = errors(project.problems(f"lsp: {{servers: {servers_text}}}\n" + project.agent()))
        assert [found_path for found_path, _ in found] == [path]


@requirement("AT-DSL-13")
def test_debug_adapters_need_a_command_or_an_adapter(project: ProjectFolder) -> None:
    sample = """\
        # in .kaged/project.yaml
        dap:
          adapters:
            - runtime: bun
              command: ["bun", "--inspect-brk=0", "--inspect-wait"]
              type: "bun"
            - runtime: node
              command: ["node", "--inspect-brk"]
              adapter: ["js-debug-adapter"]
              type: "pwa-node"
            - runtime: python
              adapter: ["debugpy", "--listen", "0"]
              type: "debugpy"
              requires_ptrace: false
        primary: {model: m, system_prompt: p}
        """
    adapters = project.load(sample).value.dsl.dap.adapters
    assert [adapter.runtime for adapter in adapters] == ["bun", "node", "python"]
    assert (adapters[0].adapter, adapters[2].command) == (None, None)
    assert adapters[2].requires_ptrace is False
    for text, path in (
        ("[{runtime: a, type: t}]", "dap.adapters[0]"),
        ("[{runtime: a, command: [x]}]", "dap.adapters[0].type"),
        (
            "[{runtime: a, type: t, command: [x]}, {runtime: a, type: t, command: [x]}]",
            "dap.adapters[1].runtime",
        ),
        ("[{runtime: a, type: t, adapter: []}]", "dap.adapters[0].adapter"),
        (
            "[{runtime: a, type: t, command: [x], requires_ptrace: no}]",
            "dap.adapters[0].requires_ptrace",
        ),
    ):
        found = errors(project.problems(f"dap: {{adapters: {text}}}\n" + project.agent()))
        assert [found_path for found_path, _ in found] == [path]


@requirement("AT-DSL-14")
def test_workflows_are_named_jobs(project: ProjectFolder) -> None:
    sample = """\
        workflows:
          deploy:
            description: Build and deploy the project to production.
            inputs:
              branch: { type: string, required: true, description: Git branch to deploy. }
              dry_run: { type: boolean, required: false, default: false }
            invokable_by: [operator]
            timeout_seconds: 600
          tidy: { timeout: 60, agent: primary.subagents.coder }
          release:
            steps:
              - message: Write the notes.
              - { message: Check them., agent: primary.subagents.coder }
        """
    found = project.load(textwrap.dedent(sample) + project.agent("", "")).value.workflows
    deploy = found["deploy"]
    assert deploy.description == "Build and deploy the project to production."
    assert (deploy.timeout_seconds, deploy.agent) == (600, "primary")
    assert deploy.inputs["branch"].required
    assert deploy.inputs["dry_run"].default is False
    assert found["tidy"].timeout_seconds == 60
    steps = found["release"].steps
    assert steps is not None
    assert [step.agent for step in steps] == ["", "primary.subagents.coder"]
    for text, path in (
        ("{Deploy: {}}", "workflows.Deploy"),
        ("{a.b: {}}", 'workflows."a.b"'),
        ("{a: {timeout: 1, timeout_seconds: 2}}", "workflows.a.timeout"),
        ("{a: {timeout: 0}}", "workflows.a.timeout_seconds"),
        ("{a: {agent: nobody}}", "workflows.a.agent"),
        ("{a: {steps: []}}", "workflows.a.steps"),
        ("{a: {steps: [{agent: primary}]}}", "workflows.a.steps[0].message"),
        ("{a: {steps: [{message: x, agent: who}]}}", "workflows.a.steps[0].agent"),
        ("{a: {wat: 1}}", "workflows.a.wat"),
    ):
        listed = errors(project.problems(f"workflows: {text}\n" + project.agent()))
        assert [found_path for found_path, _ in listed] == [path]


@requirement("AT-DSL-15")
@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("{type: string, default: x}", True),
        ("{type: number, default: 1.5}", True),
        ("{type: number, default: 2}", True),
        ("{type: integer, default: 2}", True),
        ("{type: boolean, default: true}", True),
        ("{type: enum, values: [a, b], default: a}", True),
        ("{type: file, required: true}", True),
        ("{type: boolean, default: x}", False),
        ("{type: boolean, default: 1}", False),
        ("{type: integer, default: 1.5}", False),
        ("{type: integer, default: true}", False),
        ("{type: number, default: '1'}", False),
        ("{type: string, default: 1}", False),
        ("{type: string, default: [x]}", False),
        ("{type: enum, values: [a, b], default: c}", False),
        ("{type: enum}", False),
        ("{type: enum, values: []}", False),
        ("{type: enum, values: [a, a]}", False),
        ("{type: string, values: [a]}", False),
        ("{type: file, default: x}", False),
        ("{type: text}", False),
        ("{required: true}", False),
        ("{type: string, required: yes}", False),
        ("{type: string, wat: 1}", False),
    ],
)
def test_workflow_inputs_fit_their_type(project: ProjectFolder, text: str, good: bool) -> None:
    file = f"workflows: {{ a: {{ inputs: {{ v: {text} }} }} }}\n" + project.agent()
    if good:
        value = project.load(file).value.workflows["a"].inputs["v"]
        assert value.required == ("required: true" in text)
    else:
        for path, _ in errors(project.problems(file)):
            assert path.startswith("workflows.a.inputs.v")


@requirement("AT-DSL-16")
def test_workflows_are_started_by_operators_and_guests_only(project: ProjectFolder) -> None:
    def invokers(text: str) -> tuple[Invoker, ...]:
        file = f"workflows: {{ a: {{ {text} }} }}\n" + project.agent()
        return project.load(file).value.workflows["a"].invokable_by

    assert invokers("") == (Invoker.OPERATOR,)
    assert invokers("invokable_by: [guest, operator]") == (Invoker.GUEST, Invoker.OPERATOR)
    for bad in ("[martian]", "operator", "[]", "[guest, guest]"):
        text = f"workflows: {{ a: {{ invokable_by: {bad} }} }}\n" + project.agent()
        assert errors(project.problems(text))[0][0].startswith("workflows.a.invokable_by")


@requirement("AT-DSL-17")
def test_todo_review_is_a_setting_of_subagents(project: ProjectFolder) -> None:
    for word in ("auto", "review"):
        loaded = project.load(project.agent("", f"todo_review: {word}\n"))
        assert loaded.value.primary.subagents["coder"].todo_review.value == word
    plain = project.load(project.agent("", ""))
    assert plain.value.primary.subagents["coder"].todo_review is TodoReview.REVIEW
    assert errors(project.problems(project.agent("", "todo_review: never\n")))
    assert errors(project.problems(project.agent("todo_review: auto\n"))) == [
        ("primary.todo_review", "invalid_value")
    ]


@requirement("AT-DSL-18")
def test_all_problems_are_reported_at_once_and_nothing_is_loaded(project: ProjectFolder) -> None:
    text = """\
        vesion: 1
        primary:
          system_prompt: project:/gone.md
          cage: { fs: [ { mode: rx, path: /etc } ] }
          max_steps: 0
          plugins: { memory: { isolation: project } }
          max_steps: 3
          subagents:
            coder:
              model: m
              system_prompt: p
              tools: { "kaged.*": { enabled: true } }
              plugins: { other: { isolation: project } }
              compaction: { delegate: { plugin: nobody } }
        workflows: { a: { agent: ghost } }
        """
    problems = project.problems(text)
    found = {problem.key_path for problem in problems}
    assert found == {
        "vesion",
        "primary.model",
        "primary.system_prompt",
        "primary.cage.fs[0].mode",
        "primary.cage.fs[0].path",
        "primary.max_steps",
        "primary.plugins.memory.package",
        'primary.subagents.coder.tools."kaged.*"',
        "primary.subagents.coder.plugins.other",
        "primary.subagents.coder.compaction.delegate.plugin",
        "workflows.a.agent",
    }
    assert [problem.line for problem in problems] == sorted(
        problem.line or 0 for problem in problems
    )
    assert all(problem.line is not None for problem in problems)
    assert all(problem.file == str(project.file) for problem in problems)


def test_a_misspelt_value_gets_the_nearest_word(project: ProjectFolder) -> None:
    (problem,) = project.problems(project.agent("compaction: { strategy: sumarize }\n"))
    assert problem.fix == "did you mean 'summarize'?"


@pytest.mark.parametrize(
    "key", ["models", "secrets", "capabilities", "skills", "mcp", "providers", "sandbox"]
)
def test_operator_settings_in_a_project_say_where_they_belong(
    project: ProjectFolder, key: str
) -> None:
    (problem,) = project.problems(f"{key}: {{gog: {{command: [x]}}}}\n" + project.agent())
    assert (problem.key_path, problem.code) == (key, "unknown_key")
    assert "toml" in problem.fix


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("api_token", "tok-1", True),
        ("apiKey", "k", True),
        ("client-secret", "s", True),
        ("password", "p", True),
        ("credentials", "c", True),
        ("token_style", "jwt", False),
        ("max_tokens", "100", False),
        ("secret_name", "x", False),
        ("tokens", "x", False),
        ("api_token", "", False),
    ],
)
def test_a_secret_in_the_committed_file_is_refused_without_repeating_it(
    project: ProjectFolder, name: str, value: str, refused: bool
) -> None:
    text = project.agent(
        "plugins: { memory: { package: '@k/m', config: "
        f"{{ deep: [ {{ {name}: '{value}' }} ] }} }} }}\n"
    )
    if not refused:
        assert project.load(text)
        return
    (problem,) = project.problems(text)
    assert problem.code == "secret_in_project"
    assert 'local.toml under [plugins."@k/m"]' in problem.fix
    assert "tok-1" not in str(problem)


def test_grants_and_a_cage_for_plugins_are_refused_in_a_project(project: ProjectFolder) -> None:
    for key in ("grants: ['net:*']", "cage: disabled", "secrets: {}"):
        text = project.agent(f"plugins: {{ m: {{ package: m, {key} }} }}\n")
        (problem,) = project.problems(text)
        assert problem.code == "unknown_key"
        assert problem.message == "is not allowed here"


@pytest.mark.parametrize(
    ("source", "good"),
    [
        ("./plugins/mine", True),
        ("https://github.com/a/b", True),
        ("git+https://example.org/a/b.git", True),
        ("git+file:///srv/a.git", True),
        ("git+http://127.0.0.1:8000/a.git", True),
        ("git+http://[::1]/a.git", True),
        ("./../outside", False),
        ("/abs/path", False),
        ("ftp://example.org/a", False),
        ("https://gitlab.com/a/b", False),
        ("http://github.com/a/b", False),
        ("git+http://example.org/a.git", False),
        ("git+ssh://git@github.com/a/b", False),
        ("https://github.com/", False),
        ("https://user:pw@github.com/a/b", False),
        ("https://github.com.evil.org/a", False),
        ("git+file://host/a", False),
        ("https://[::1/a", False),
    ],
)
def test_plugin_sources_are_the_supported_ones(
    project: ProjectFolder, source: str, good: bool
) -> None:
    text = project.agent(f"plugins: {{ m: {{ package: m, source: '{source}', version: ^1.2 }} }}\n")
    if good:
        assert project.load(text).value.primary.plugins["m"].source is not None
    else:
        (problem,) = project.problems(text)
        assert problem.key_path == "primary.plugins.m.source"
        assert ":pw@" not in str(problem)


def test_a_project_is_found_through_a_linked_root(project: ProjectFolder) -> None:
    project.load(project.agent())
    link = project.root.parent / "link"
    link.symlink_to(project.root)
    loaded = load_project(link).value
    assert loaded.root == project.root
    assert loaded.slug == "sample"


def test_missing_things_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileInvalid, match="kaged project init"):
        load_project(tmp_path)
    with pytest.raises(ConfigFileInvalid, match="not a directory"):
        load_project(tmp_path / "gone")


def test_a_project_file_that_is_a_link_out_of_the_project_is_refused(
    project: ProjectFolder,
) -> None:
    outside = project.root.parent / "shared.yaml"
    outside.write_text(project.agent(), encoding="utf-8")
    project.file.symlink_to(outside)
    with pytest.raises(ConfigFileInvalid, match="leaves the project"):
        load_project(project.root)


@pytest.mark.parametrize("value", ["", " null", " ~"])
def test_a_key_without_a_value_is_not_the_same_as_no_key(
    project: ProjectFolder, value: str
) -> None:
    (problem,) = project.problems(project.agent(f"cage:{value}\n"))
    assert problem.key_path == "primary.cage"
    (problem,) = project.problems(project.agent(f"max_steps:{value}\n"))
    assert "no value" in problem.message


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ("max_steps: '5'\n", "remove the quotes"),
        ("description: 5\n", "put the value in quotes"),
        ("plugins: { m: { package: m, hooks: pre_compact } }\n", "[value]"),
    ],
)
def test_wrong_types_come_with_the_likely_fix(project: ProjectFolder, keys: str, fix: str) -> None:
    (problem,) = project.problems(project.agent(keys))
    assert problem.code == "wrong_type"
    assert fix in problem.fix


def test_a_file_full_of_mistakes_gives_a_list_of_limited_length(project: ProjectFolder) -> None:
    text = project.agent() + "".join(f"  wrong{n}: 1\n" for n in range(1000))
    assert len(project.problems(text)) == 200


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("My Project", "my-project"),
        ("2nd", "p-2nd"),
        ("---", "project"),
        ("Größe", "gr-e"),
        ("a" * 100, "a" * 64),
        ("under_score", "under_score"),
    ],
)
def test_any_directory_name_makes_a_slug(name: str, slug: str) -> None:
    assert slugify(name) == slug


def test_parsing_a_text_does_not_need_the_file(tmp_path: Path) -> None:
    loaded = parse_project("primary: {model: m, system_prompt: p}", tmp_path)
    assert loaded.value.primary.system_prompt.text == "p"
    assert loaded.provenance["primary.model"].line == 1
    assert all(w.severity is Severity.WARNING for w in loaded.warnings)


@requirement("AT-DSL-03")
def test_keys_of_subagents_are_slugs_that_occur_once(project: ProjectFolder) -> None:
    def below(*keys: str) -> str:
        lines = "".join(f"    {key}: {{model: m, system_prompt: p}}\n" for key in keys)
        return f"{project.agent()}  subagents:\n{lines}"

    assert set(project.load(below("coder", "a-b_2")).value.primary.subagents) == {"coder", "a-b_2"}
    for key in ("a.b", "'a b'", "Coder", "2nd", "-x", "''", "é"):
        assert errors(project.problems(below(key))), key
    assert errors(project.problems(below("coder", "coder")))

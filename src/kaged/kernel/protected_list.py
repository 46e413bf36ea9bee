"""`PROTECTED`: the list itself, with who obeys each path. Pure.

A path is on the list when a program of the host obeys it although the person only opened a folder,
entered it, committed, or installed. Code that a person builds, tests or imports by hand is not: it
is what agents are there to write (`package.json`, `pyproject.toml`, `Cargo.toml`, `build.rs`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kaged.base.lazy_dataclass import dataclass

REBASE_DIR: Final = "rebase-merge"
SEQUENCER_DIR: Final = "sequencer"


class PathClass(StrEnum):
    """How a protected path becomes dangerous."""

    RUN = "run"
    GIT_CONFIG = "git_config"
    REVIEWED = "reviewed"


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """One entry of the list: names in a row, of which the last may have a `*`; who obeys them."""

    pattern: str
    kind: PathClass
    why: str


_RUN: Final[tuple[tuple[str, str], ...]] = (
    (
        "git runs what lies there at the next commit, merge or checkout",
        """
        .git/hooks .git/modules/*/hooks
        """,
    ),
    ("git runs its commands when it goes on", f".git/{REBASE_DIR} .git/{SEQUENCER_DIR}"),
    (
        "a hook of git that is installed runs its commands at the next commit",
        """
        .husky .huskyrc* .lefthook* lefthook.yml lefthook.yaml lefthook.toml lefthook.json
        lefthook.jsonc lefthook-local.yml lefthook-local.yaml lefthook-local.toml
        lefthook-local.json lefthook-local.jsonc .config/lefthook.yml .config/lefthook.yaml
        .config/lefthook.toml .config/lefthook.json .config/lefthook.jsonc
        """,
    ),
    (
        "another version control runs the hooks, aliases and tools that it names",
        """
        .hg/hgrc .hg/hgrc-not-shared .jj/repo/config.toml .jj/config.toml .pijul/config
        _darcs/prefs/defaults
        """,
    ),
    (
        "a shell with a hook, such as direnv's, runs it on entering the folder",
        """
        .envrc .mise.toml .mise.*.toml mise.toml mise.*.toml .mise mise/config.toml
        .config/mise.toml .config/mise .rtx.toml
        """,
    ),
    (
        "an editor runs its tasks and settings when the folder is opened",
        """
        .vscode *.code-workspace .theia .idea .run *.ipr *.iws .fleet .zed .lapce .helix
        .devcontainer .devcontainer.json *.sublime-project .kateproject .lite_project.lua
        .externaltoolbuilders .factorypath
        """,
    ),
    (
        "an editor runs it as its own start file when it is opened in the folder",
        """
        .exrc .nvimrc .nvim.lua .vimrc _vimrc .gvimrc .lvimrc .local.vimrc .dir-locals.el
        .dir-locals-2.el .ycm_extra_conf.py .vimspector.json .vim/coc-settings.json
        .vim-lsp-settings
        """,
    ),
    (
        "a language server or editor starts the program that it names when a file is opened",
        """
        .bsp hie.yaml .hie-bios .merlin
        """,
    ),
    (
        "a debugger or interpreter runs it when it starts in the folder",
        """
        .gdbinit .lldbinit .pdbrc .perldb .rdbgrc .byebugrc .irbrc .pryrc .rprofile .renviron
        .ghci .ocamlinit .iex.exs .octaverc
        """,
    ),
    (
        "a coding assistant starts the servers and hooks that it names",
        """
        .mcp.json .claude .cursor .codex .gemini .opencode opencode.json opencode.jsonc .windsurf
        .continue .continuerc.json .aider.conf.yml .kiro .roo .roomodes .cline .clinerules
        .amazonq .qwen .crush.json crush.json .trae .junie .augment .factory .amp .copilot
        .github/hooks .openhands .tabnine .qoder .vibe .pi
        """,
    ),
    (
        "agents take instructions from it and run its scripts",
        """
        .kaged/skills .agents .agent
        """,
    ),
    (
        "a package manager obeys it at the next install",
        """
        .npmrc .yarnrc* pip.conf .pnpmfile.cjs .pnpmfile.mjs .yarn/plugins .yarn/releases
        bunfig.toml uv.toml .pdm-plugins .pdm-python .pixi/config.toml .bundle/config nuget.config
        """,
    ),
    (
        "a build tool takes programs from it at its next start, whatever it is asked to do",
        """
        .cargo/config .cargo/config.toml rust-toolchain rust-toolchain.toml .bazelrc .bazeliskrc
        .buckconfig* .mvn .sbtopts .jvmopts ansible.cfg
        """,
    ),
)

_REVIEWED: Final[tuple[tuple[str, str], ...]] = (
    (
        "it runs in continuous integration",
        """
        .github/workflows .github/actions .gitlab-ci.yml .circleci .buildkite .travis.yml
        .cirrus.yml .drone.yml .woodpecker.yml .woodpecker.yaml .woodpecker azure-pipelines.yml
        bitbucket-pipelines.yml appveyor.yml jenkinsfile .forgejo/workflows .gitea/workflows
        .gitpod.yml
        """,
    ),
    (
        "it names hooks or tools that are installed from it",
        """
        .pre-commit-config.yaml .pre-commit-config.yml prek.toml .overcommit.yml
        .simple-git-hooks.json .lintstagedrc* .tool-versions pnpm-workspace.yaml poetry.toml
        global.json .config/dotnet-tools.json .gitmodules
        """,
    ),
    (
        "a person runs it by hand",
        """
        makefile gnumakefile *.mk justfile .justfile rakefile taskfile.yml taskfile.yaml
        vagrantfile procfile gradlew mvnw gradle/wrapper tools/bazel
        """,
    ),
    (
        "an environment that a shell enters runs what it names",
        """
        flake.nix shell.nix devenv.nix devenv.yaml devbox.json .flox/env/manifest.toml
        """,
    ),
    (
        "a shell runs it where the folder is a home, or linked from one",
        """
        .bashrc .bash_profile .profile .zshrc .zshenv .zprofile
        """,
    ),
    (
        "coding assistants take instructions from it",
        """
        agents.md agents.override.md claude.md claude.local.md gemini.md qwen.md crush.md warp.md
        .cursorrules .windsurfrules .rules .goosehints .github/copilot-instructions.md
        .github/instructions .github/prompts .github/agents
        """,
    ),
    ("it decides which programs git hands files to", ".gitattributes"),
)

PROTECTED: Final[tuple[ProtectedPath, ...]] = (
    *(ProtectedPath(one, PathClass.RUN, why) for why, all_of in _RUN for one in all_of.split()),
    ProtectedPath(".git/config", PathClass.GIT_CONFIG, "git runs the commands that its keys name"),
    *(
        ProtectedPath(one, PathClass.REVIEWED, why)
        for why, all_of in _REVIEWED
        for one in all_of.split()
    ),
)

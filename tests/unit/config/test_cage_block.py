from __future__ import annotations

from pathlib import Path

import pytest

from kaged.config.cageblock import CageBlock, CageWord, FullLimits
from kaged.config.project import parse_project
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import (
    CageLimits,
    CagePolicy,
    CageState,
    FsGrant,
    FsMode,
    SeccompProfile,
)
from kaged.kernel.toolchains import Toolchain
from requirements import requirement
from unit.config.trials import ProjectFolder, errors, warnings

ROOT = Path("/srv/proj")


def block(project: ProjectFolder, text: str) -> CageBlock:
    found = project.load(project.agent(f"cage: {text}\n")).value.primary.cage
    assert isinstance(found, CageBlock)
    return found


@requirement("AT-DSL-05", "AT-CTX-09")
def test_a_cage_is_disabled_or_a_block_that_compiles_to_a_policy(project: ProjectFolder) -> None:
    coder = block(
        project, "{ fs: [{ mode: rw, path: ./src }], net: { allow: [] }, state: ephemeral }"
    )
    assert coder.policy(ROOT, CageLimits()) == CagePolicy(
        fs=(FsGrant("/srv/proj/src", FsMode.RW),),
        net=(),
        state=CageState.EPHEMERAL,
        seccomp=SeccompProfile.DEFAULT,
        capabilities=frozenset(),
    )
    full = block(
        project,
        """{
          fs: [ { mode: ro, path: . }, { mode: rw, path: src/**/*.py } ],
          net: { allow: [ "api.example.com:443", "localhost:*", "*" ] },
          state: persistent, seccomp: relaxed, capabilities: [ shell, exec ],
          env: { LANG: C.UTF-8 },
          limits: { memory_mb: 1024, cpu_shares: 512, pids: 50, walltime_sec: 60 } }""",
    )
    assert full.policy(ROOT, CageLimits(open_files=7)) == CagePolicy(
        fs=(FsGrant("/srv/proj", FsMode.RO), FsGrant("/srv/proj/src/**/*.py", FsMode.RW)),
        net=(
            NetTarget("api.example.com", 443),
            NetTarget("localhost", None),
            NetTarget(None, None),
        ),
        state=CageState.PERSISTENT,
        seccomp=SeccompProfile.RELAXED,
        capabilities=frozenset({"shell", "exec"}),
        env=(("LANG", "C.UTF-8"),),
        limits=CageLimits(memory_mb=1024, cpu_shares=512, pids=50, walltime_sec=60, open_files=7),
    )
    word = project.load(project.agent("cage: disabled\n")).value.primary.cage
    assert word is CageWord.DISABLED


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("enabled", "primary.cage"),
        ("false", "primary.cage"),
        ("[]", "primary.cage"),
        ("{ fs: [{mode: rwx, path: a}] }", "primary.cage.fs[0].mode"),
        ("{ fs: [{mode: rw}] }", "primary.cage.fs[0].path"),
        ("{ fs: [{mode: rw, path: /etc}] }", "primary.cage.fs[0].path"),
        ("{ fs: [{mode: rw, path: ~/x}] }", "primary.cage.fs[0].path"),
        ("{ fs: [{mode: rw, path: a/../../x}] }", "primary.cage.fs[0].path"),
        ("{ fs: [{mode: rw, path: a, wat: 1}] }", "primary.cage.fs[0].wat"),
        ("{ fs: ./src }", "primary.cage.fs"),
        ("{ fs: [{mode: rw, path: a}, {mode: ro, path: ./a/}] }", "primary.cage"),
        ("{ net: [] }", "primary.cage.net"),
        ("{ net: { allow: [example.com] } }", "primary.cage.net.allow[0]"),
        ("{ net: { allow: ['h:0'] } }", "primary.cage.net.allow[0]"),
        ("{ net: { deny: [] } }", "primary.cage.net.deny"),
        ("{ state: forever }", "primary.cage.state"),
        ("{ seccomp: none }", "primary.cage.seccomp"),
        ("{ capabilities: [Shell] }", "primary.cage.capabilities[0]"),
        ("{ capabilities: [shell, shell] }", "primary.cage.capabilities[1]"),
        ("{ env: { 1A: x } }", "primary.cage.env.1A"),
        ("{ env: { A: 1 } }", "primary.cage.env.A"),
        ('{ env: { A: "x\\0y" } }', "primary.cage.env.A"),
        ("{ limits: { memory_mb: 0 } }", "primary.cage.limits.memory_mb"),
        ("{ limits: { pids: 1.5 } }", "primary.cage.limits.pids"),
        ("{ limits: { walltime_sec: -1 } }", "primary.cage.limits.walltime_sec"),
        ("{ limits: { disk_mb: 1 } }", "primary.cage.limits.disk_mb"),
        ("{ filesystem: [] }", "primary.cage.filesystem"),
    ],
)
def test_a_wrong_cage_never_loads(project: ProjectFolder, text: str, path: str) -> None:
    assert [found for found, _ in errors(project.problems(project.agent(f"cage: {text}\n")))] == [
        path
    ]


def test_a_misspelt_capability_and_a_variable_are_pointed_out(project: ProjectFolder) -> None:
    loaded = project.load(
        project.agent("cage: { capabilities: [shel, my-own], env: { T: '${TOKEN}' } }\n")
    )
    assert warnings(loaded.warnings) == [
        ("primary.cage", "unknown_capability"),
        ("primary.cage", "no_substitution"),
    ]


def test_toolchains_are_known_names_and_part_of_the_policy(project: ProjectFolder) -> None:
    found = block(project, "{ toolchains: [rust, python] }").policy(ROOT, CageLimits())
    assert found.toolchains == (Toolchain.RUST, Toolchain.PYTHON)
    (problem,) = project.problems(project.agent("cage: { toolchains: [pyton] }\n"))
    assert problem.key_path == "primary.cage.toolchains[0]"
    assert problem.message == "'pyton' is not one of go, java, node, python, rust"
    assert problem.fix == "did you mean 'python'?"
    (twice,) = project.problems(project.agent("cage: { toolchains: [go, go] }\n"))
    assert twice.key_path.startswith("primary.cage.toolchains")


def test_globs_are_refused_when_the_root_itself_looks_like_one(tmp_path: Path) -> None:
    root = tmp_path / "app[1]"
    root.mkdir()
    text = "primary: {{model: m, system_prompt: p, cage: {{fs: [{{mode: ro, path: {0}}}]}}}}"
    assert parse_project(text.format("src"), root)
    with pytest.raises(Exception, match="glob characters in its name"):
        parse_project(text.format("src/*.py"), root)


def test_limits_lie_over_the_operators_defaults() -> None:
    base = FullLimits(memory_mb=2048, tmpfs_mb=1).over(CageLimits())
    assert (base.memory_mb, base.tmpfs_mb, base.pids) == (2048, 1, 100)

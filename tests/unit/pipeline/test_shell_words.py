"""What a script would run, found by the shell's grammar wherever it hides."""

from __future__ import annotations

import pytest

from kaged.pipeline.contexts import GlobalContext, PluginContext
from kaged.pipeline.payloads.calls import ToolPreInvokePayload
from kaged.pipeline.policies.commands import CommandAllowlist
from kaged.pipeline.policies.shell_words import MAX_SCRIPT_CHARS, ScriptUnreadable, read_script
from kaged.pipeline.settings import PluginConfig


def names(script: str) -> list[str | None]:
    return [one.words[0] if one.words else "" for one in read_script(script).commands]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("git status", ["git"]),
        ("ls; rm -rf x", ["ls", "rm"]),
        ("ls && rm x || wget y", ["ls", "rm", "wget"]),
        ("ls | sh", ["ls", "sh"]),
        ("echo $(rm x)", ["echo", "rm"]),
        ("echo `rm x`", ["echo", "rm"]),
        ('echo "a $(rm x) b"', ["echo", "rm"]),
        ("cat <(curl x)", ["cat", "curl"]),
        ("tee >(nc x)", ["tee", "nc"]),
        ("if true; then rm x; fi", ["true", "rm"]),
        ("while ls; do rm x; done", ["ls", "rm"]),
        ("for i in a; do rm $i; done", ["rm"]),
        ("case a in a) rm x;; esac", ["rm"]),
        ("f() { rm x; }; f", ["rm", "f"]),
        ("(rm x)", ["rm"]),
        ("{ rm x; }", ["rm"]),
        ("rm x &", ["rm"]),
        ("! rm x", ["rm"]),
        ("cat <<END\n$(rm x)\nEND", ["cat", "rm"]),
        ("ls\nrm x", ["ls", "rm"]),
        ("ls \\\n; rm x", ["ls", "rm"]),
        ("x=$(rm y)", ["rm"]),
        ("ls > $(rm x)", ["ls", "rm"]),
        ("[[ $(rm x) ]]", ["rm"]),
        ("echo ${x:-$(rm y)}", ["echo", "rm"]),
        ("echo $((1 + $(rm x)))", ["echo", "rm"]),
        ("r\\m x", ["rm"]),
        ("r''m x", ["rm"]),
        ('"rm" x', ["rm"]),
        ("$x y", [None]),
        ("/bin/r? x", [None]),
        ("$(echo rm) x", [None, "echo"]),
        ("$'rm' x", [None]),
    ],
)
def test_every_command_is_found(script: str, found: list[str | None]) -> None:
    assert sorted(names(script), key=str) == sorted(found, key=str)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("A=1 ls", {"A"}),
        ("PATH=/x", {"PATH"}),
        ("export PATH=/x", {"PATH"}),
        ("declare -x LD_PRELOAD=/x", {"LD_PRELOAD"}),
        ("for PATH in /x; do ls; done", {"PATH"}),
        ('declare "$x"', {""}),
        ("a[0]=1", {"a"}),
        ("unset PATH", {"PATH"}),
        ("ls A=1", set[str]()),
    ],
)
def test_every_variable_that_is_set_is_found(script: str, found: set[str]) -> None:
    assert read_script(script).variables == found


@pytest.mark.parametrize(
    "script", ["{rm,x}", 'echo "open', "ls )", "a\0b", "ls\r\nrm x", "x" * (MAX_SCRIPT_CHARS + 1)]
)
def test_what_cannot_be_read_is_refused(script: str) -> None:
    with pytest.raises(ScriptUnreadable):
        read_script(script)


async def allowed(script: object, allow: list[str], variables: list[str] | None = None) -> bool:
    config = {"allow": allow, "variables": variables or []}
    policy = CommandAllowlist(PluginConfig(name="c", kind="x", config=config))
    payload = ToolPreInvokePayload(name="shell.bash", args={"command": script})
    context = PluginContext(GlobalContext(request_id="r"))
    result = await policy.tool_pre_invoke(payload, context, None)
    return result is None


@pytest.mark.parametrize(
    ("script", "patterns", "passes"),
    [
        ("git status", ["git status"], True),
        ("git status -s", ["git status"], False),
        ("git status -s", ["git status *"], True),
        ("git status", ["git status *"], True),
        ("git push", ["git status *", "git log *"], False),
        ("git 'sta'tus", ["git status"], True),
        ("git $x", ["git status"], False),
        ("git log $x", ["git log *"], True),
        ("git -C x push", ["git * x status"], False),
        ("make test-a", ["make test-?"], True),
        ("make test-ab", ["make test-?"], False),
        ("/usr/bin/git status", ["git status"], False),
        ("git status; rm x", ["git status"], False),
        ("git status $(rm x)", ["git status *"], False),
        ("", ["git status"], True),
        (["rm", "x"], ["rm *"], False),
    ],
)
async def test_a_pattern_allows_what_it_says_and_no_more(
    script: object, patterns: list[str], passes: bool
) -> None:
    assert await allowed(script, patterns) is passes


async def test_variables_are_set_only_if_they_are_on_the_list() -> None:
    assert not await allowed("PATH=/x git status", ["git status"])
    assert await allowed("i=1 git status", ["git status"], ["i"])
    assert not await allowed('declare "$x"', ["git status"], ["*x"])


@pytest.mark.parametrize("pattern", ["", "* status", "g?t"])
def test_a_pattern_without_a_command_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="must begin with the name of a command"):
        CommandAllowlist(PluginConfig(name="c", kind="x", config={"allow": [pattern]}))

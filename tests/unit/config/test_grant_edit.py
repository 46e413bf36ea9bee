"""What "always" writes: the narrowest entry, in the agent's own block, and nothing else."""

from __future__ import annotations

import pytest

from kaged.config import EditRefused
from kaged.config.grant_edit import shown_diff, write_grants
from kaged.config.yamledit import YamlEdit
from kaged.kernel.access import AccessGrant, AccessKind
from kaged.kernel.policy import FsMode

TEXT = """\
primary:
  cage:
    fs:
      - { mode: ro, path: ./docs } # look
      - mode: rw
        path: src
  subagents:
    coder:
      tools: {}
"""


def path(target: str, mode: FsMode = FsMode.RO) -> AccessGrant:
    return AccessGrant(AccessKind.PATH, target, mode)


def written(agent: str, *grants: AccessGrant, text: str = TEXT) -> list[str]:
    """Return the lines that the grants change."""
    edit = YamlEdit(text, "f.yaml")
    write_grants(edit, agent, grants)
    diff = shown_diff(text, edit.text, "f.yaml")
    return [one for one in diff[2:] if one[0] in "+-"]


def test_a_path_becomes_an_entry() -> None:
    assert written("primary", path("notes/a.txt")) == ["+      - { mode: ro, path: notes/a.txt }"]


def test_a_path_that_is_there_gets_another_mode_and_never_less() -> None:
    assert written("primary", path("docs", FsMode.RW)) == [
        "-      - { mode: ro, path: ./docs } # look",
        "+      - { mode: rw, path: ./docs } # look",
    ]
    assert written("primary", path("src")) == []


def test_an_agent_without_a_cage_block_gets_one_but_for_the_primary() -> None:
    host = AccessGrant(AccessKind.HOST, "pypi.org:443")
    (line,) = written("primary.subagents.coder", host)
    assert line == '+      cage: { net: { allow: ["pypi.org:443"] } }'
    for text in ("primary: {}\n", "primary:\n  cage: disabled\n"):
        with pytest.raises(EditRefused):
            written("primary", host, text=text)


def test_a_tool_and_a_named_grant() -> None:
    tool = AccessGrant(AccessKind.TOOL, "file.read")
    named = AccessGrant(AccessKind.CAPABILITY, "shell")
    assert written("primary", tool, named) == [
        "+    capabilities: [shell]",
        "+  tools: { file.read: { enabled: true } }",
    ]

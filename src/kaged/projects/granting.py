"""`GrantProposal`: what "always" would write into a project's file, and the writing of just that.

What is shown is the difference of two texts. It is written only if the file still is the first of
them, and agreed to only if the project then asks for what was worked out from the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.editing import edit_yaml
from kaged.config.files import read_text
from kaged.config.grant_edit import shown_diff, write_grants
from kaged.config.problems import ConfigFileInvalid
from kaged.config.project import PROJECT_FILE, parse_project
from kaged.config.project_ask import project_ask
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.yamledit import EditRefused, YamlEdit
from kaged.kernel.access import AccessGrant


@dataclass(frozen=True, slots=True)
class GrantProposal:
    """An edit of a project file that gives an agent grants. `digest` is of the ask it leads to."""

    agent: str
    grants: tuple[AccessGrant, ...]
    before: str
    diff: tuple[str, ...]
    digest: str


def propose_grants(
    root: str, agreed_digest: str, agent: str, grants: Sequence[AccessGrant]
) -> GrantProposal | None:
    """Return the edit that would give an agent grants for good. Blocks on the disk.

    None where there is none to show: the file cannot be edited so, or by now it asks for something
    else than what is in force, which an answer must not agree to along the way.
    """
    folder = Path(root)
    try:
        before = read_text(_file(folder), inside=folder).text
        if project_ask(parse_project(before, folder).value).digest != agreed_digest:
            return None
        edit = YamlEdit(before, str(_file(folder)))
        write_grants(edit, agent, grants)
        digest = project_ask(parse_project(edit.text, folder).value).digest
    except (ConfigFileInvalid, EditRefused):
        return None
    if edit.text == before:
        return None
    name = f"{KAGED_DIR}/{PROJECT_FILE}"
    diff = shown_diff(before, edit.text, name)
    return GrantProposal(agent, tuple(grants), before, tuple(diff), digest)


def write_proposal(root: str, proposal: GrantProposal) -> None:
    """Write a proposal into the project's file, if it still is what was shown. Blocks on the disk.

    Raises:
        KagedError: `project_ask_changed`; the file is another one by now.
        ConfigFileInvalid, EditRefused, KagedError: `config_busy`, `config_changed`,
            `config_write_failed`; nothing is written.
    """

    def change(edit: YamlEdit) -> None:
        if edit.text != proposal.before:
            raise KagedError(
                "The project file was changed since you were shown what would be written.",
                code="project_ask_changed",
                fix="Answer with `session`, or edit the project file by hand.",
            )
        write_grants(edit, proposal.agent, proposal.grants)

    folder = Path(root)
    edit_yaml(_file(folder), change, inside=folder)


def _file(root: Path) -> Path:
    return root / KAGED_DIR / PROJECT_FILE

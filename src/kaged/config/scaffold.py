"""`init_project`: the files a new project starts with; never overwrites anything."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.project import PROJECT_FILE, slugify
from kaged.config.projectpaths import KAGED_DIR

PROMPT_FILE: Final = "prompts/primary.md"

_GITIGNORE: Final = """\
# Scratch files of kaged; everything else in this directory belongs into version control.
tmp/
*.local.*
"""

_PROMPT: Final = """\
You are the primary agent of this project.

Say what you are going to do before you do it, keep changes small, and ask when something is
unclear. Hand work that needs its own focus to a subagent if there is one for it.
"""

_PROJECT: Final = """\
# The project file of kaged. Check it with `kaged project check`, see what it amounts to with
# `kaged project show`. Unknown keys are errors, so that a typo cannot loosen a cage.

version: 1
project: {slug}

primary:
  # An alias; your own local.toml says which model it is: [models.default]
  model: default

  # The prompt: text, or a file. config:/x is .kaged/x, project:/x starts at the project root.
  system_prompt: config:/prompts/primary.md

  # What the agent's tools can reach. `disabled` means everything in the project.
  cage:
    fs:
      - {{ mode: rw, path: . }}
    net: {{ allow: [] }} # for example [ "api.example.com:443" ]

  # Tools that are off by default, switched on by name or glob.
  tools:
    "file.*": {{ enabled: true }}
    "edit.*": {{ enabled: true }}
    "search.*": {{ enabled: true }}

  # Agents that the primary can call. Each has its own prompt, tools and cage; without a cage
  # block a subagent reaches nothing.
  # subagents:
  #   reviewer:
  #     model: default
  #     description: Reads the code and says what could be better.
  #     system_prompt: You review code. You change nothing.
  #     cage:
  #       fs: [{{ mode: ro, path: . }}]
  #     tools:
  #       "file.read": {{ enabled: true }}
  #       "search.*": {{ enabled: true }}

# Jobs with a name, started by hand or by an agent.
# workflows:
#   release-notes:
#     description: Write the release notes for a version.
#     inputs:
#       version: {{ type: string, required: true }}
"""


def scaffold_text() -> str:
    """Return the project file that `init_project` writes, with the prompt in it."""
    prompt = f"system_prompt: config:/{PROMPT_FILE}"
    return _PROJECT.format(slug="project").replace(prompt, f"system_prompt: {json.dumps(_PROMPT)}")


@dataclass(frozen=True, slots=True)
class InitReport:
    """What was made and what was there before, as paths relative to the root."""

    root: Path
    created: tuple[str, ...]
    kept: tuple[str, ...]


def init_project(root: Path | str) -> InitReport:
    """Put `.kaged/` with a commented project file and a first prompt into a directory.

    Existing files are left as they are, so it is safe to run again. Blocks on the disk.

    Raises:
        KagedError: `project_init_refused`; the root is no directory, `.kaged` is a link or a file,
            or something
            cannot be written.
    """
    real_root = Path(os.path.realpath(root))
    if not real_root.is_dir():
        raise KagedError(
            f"{root} is not a directory",
            code="project_init_refused",
            fix="make the directory first",
        )
    base = real_root / KAGED_DIR
    created: list[str] = []
    kept: list[str] = []
    try:
        for directory in (base, base / "tmp", base / "prompts"):
            _make_directory(directory)
        slug = slugify(real_root.name)
        files = {
            base / ".gitignore": _GITIGNORE,
            base / PROMPT_FILE: _PROMPT,
            # The project file comes last: when it is there, what it points to is there as well.
            base / PROJECT_FILE: _PROJECT.format(slug=slug),
        }
        for path, text in files.items():
            listed = created if _write_new(path, text) else kept
            listed.append(str(path.relative_to(real_root)))
    except OSError as error:
        raise KagedError(
            f"{error.filename or base} cannot be written: {error.strerror}",
            code="project_init_refused",
            fix="check permissions and free space, then run it again",
        ) from error
    return InitReport(real_root, tuple(created), tuple(kept))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o755)
    except FileExistsError:
        # A link here could lead out of the project.
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise KagedError(
                f"{path} exists and is not a directory",
                code="project_init_refused",
                fix="move it away",
            ) from None


def _write_new(path: Path, text: str) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o644)
    except FileExistsError:
        return False
    try:
        data = memoryview(text.encode("utf-8"))
        while data:
            data = data[os.write(handle, data) :]
    except OSError:
        # Half a file would be taken for the operator's own the next time.
        path.unlink()
        raise
    finally:
        os.close(handle)
    return True

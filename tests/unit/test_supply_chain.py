"""What is installed is locked by hash; the bill of materials and the advisories go by the locks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from supply_chain import Locked, bill_of_materials, findings, read_lock  # noqa: E402

RUN, DEV = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
TOOLS = ROOT / "tests" / "tools"
PINNED = Locked("some-package", "1.4.2", linux=True)


def _advisory(*events: dict[str, str], **changes: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": "PyPI", "name": "Some_Package"},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    return {"id": "OSV-1", "summary": "It leaks.", "affected": [affected], **changes}


@pytest.mark.parametrize("lock", [RUN, DEV], ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    blocks = text.replace("\\\n", " ").splitlines()
    assert len(blocks) == len(read_lock(lock)) > 50
    assert all("--hash=sha256:" in block for block in blocks)


def test_programs_from_npm_that_tests_use_are_pinned_and_locked_by_hash() -> None:
    wanted = json.loads((TOOLS / "package.json").read_text(encoding="utf-8"))["dependencies"]
    lock = json.loads((TOOLS / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert lock.pop("")["dependencies"] == wanted
    for name, version in wanted.items():
        exact = version.rpartition("@")[2]
        assert exact[0].isdigit(), f"{name} is not pinned"
        assert lock[f"node_modules/{name}"]["version"] == exact
    for path, one in lock.items():
        assert one["integrity"].startswith("sha512-"), path
        assert "resolved" not in one, path  # the address of a registry


def test_every_program_of_others_stands_in_the_table_with_the_tests_that_use_it() -> None:
    table = (TOOLS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", table))
    wanted = set(json.loads((TOOLS / "package.json").read_text(encoding="utf-8"))["dependencies"])
    for file in TOOLS.glob("*.in"):
        wanted |= {one.partition("==")[0] for one in file.read_text(encoding="utf-8").split()}
    assert wanted <= named, wanted - named
    paths = [one for one in named if one.startswith("tests/")]
    assert len(paths) > 5
    assert [one for one in paths if not (ROOT / one).exists()] == []


@pytest.mark.parametrize("name", ["policy-plugins", "cpex-framework"])
def test_python_packages_that_tests_use_beside_ours_are_pinned_and_locked_by_hash(
    name: str,
) -> None:
    lock = TOOLS / f"{name}.lock"
    wanted = (TOOLS / f"{name}.in").read_text(encoding="utf-8").split()
    assert {f"{one.name}=={one.version}" for one in read_lock(lock)} >= set(wanted)
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert all("--hash=sha256:" in one for one in text.replace("\\\n", " ").splitlines())


def test_what_runs_is_locked_to_the_versions_that_ci_tests() -> None:
    tested = {one.name: one.version for one in read_lock(DEV)}
    running = {one.name: one.version for one in read_lock(RUN)}
    assert running.items() <= tested.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for wanted, locked in ((project["dependencies"], running), (extras["dev"], tested)):
        for text in wanted:
            one = Requirement(text)
            assert one.specifier.contains(locked[canonicalize_name(one.name)]), text


def test_the_bill_of_materials_is_the_lock_of_what_runs() -> None:
    stored = json.loads((ROOT / "sbom.cdx.json").read_text(encoding="utf-8"))
    own = stored["metadata"]["component"]["version"]
    assert stored == bill_of_materials(read_lock(RUN), own)
    named = {part["purl"] for part in stored["components"]}
    assert "pkg:pypi/fastapi@" in " ".join(named)
    assert not any("pywin32" in one for one in named)  # kaged runs on Linux only


INTRODUCED = {"introduced": "0"}


@pytest.mark.parametrize(
    ("advisory", "applies"),
    [
        (_advisory(INTRODUCED), True),
        (_advisory(INTRODUCED, {"fixed": "1.4.2"}), False),
        (_advisory(INTRODUCED, {"fixed": "1.4.3"}), True),
        (_advisory(INTRODUCED, {"fixed": "1.10"}), True),  # by version, not by letters
        (_advisory({"introduced": "1.5"}), False),
        (_advisory(INTRODUCED, {"fixed": "1.0"}, {"introduced": "1.4"}, {"fixed": "2"}), True),
        (_advisory(INTRODUCED, {"last_affected": "1.4.2"}), True),
        (_advisory(INTRODUCED, {"last_affected": "1.4.1"}), False),
        (_advisory({"introduced": "a week ago"}), True),  # cannot be compared: worth a look
        (_advisory(INTRODUCED, withdrawn="2026-01-01T00:00:00Z"), False),
        (
            {"id": "OSV-2", "affected": [{"package": {"ecosystem": "npm", "name": "some-package"},
                                          "versions": ["1.4.2"]}]},
            False,
        ),
        (
            {"id": "OSV-3", "affected": [{"package": {"ecosystem": "PyPI", "name": "some.package"},
                                          "versions": ["1.4.1", "1.4.2"]}]},
            True,
        ),
    ],
)  # fmt: skip
def test_an_advisory_applies_to_the_versions_that_it_names(
    advisory: dict[str, Any], applies: bool
) -> None:
    assert bool(findings([PINNED], [advisory])) is applies


def _audit(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts/supply_chain.py"), "audit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_without_advisories_the_audit_says_that_it_checked_nothing(tmp_path: Path) -> None:
    (tmp_path / "not.zip").write_text("no archive", encoding="utf-8")
    for arguments in ([], [str(tmp_path / "absent")], [str(tmp_path)], [str(tmp_path / "not.zip")]):
        status, said = _audit(*arguments)
        assert status == 2
        assert "not checked" in said
        assert "make audit ADVISORIES=" in said


def test_the_audit_names_what_applies_from_a_file_a_folder_and_an_archive(tmp_path: Path) -> None:
    def about(name: str) -> dict[str, Any]:
        advisory = _advisory(INTRODUCED)
        advisory["affected"][0]["package"]["name"] = name
        return advisory

    folder = tmp_path / "advisories"
    folder.mkdir()
    (folder / "1.json").write_text(json.dumps(about("elsewhere")), encoding="utf-8")
    assert _audit(str(folder))[0] == 0
    (folder / "2.json").write_text(json.dumps(about("fastapi")), encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    for place in (folder, folder / "2.json", tmp_path / "all.zip"):
        status, said = _audit(str(place))
        assert status == 1
        assert "fastapi" in said
        assert "OSV-1 It leaks." in said

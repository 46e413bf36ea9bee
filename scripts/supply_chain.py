"""What kaged is made of: a bill of materials from the lock, and known advisories about it.

python scripts/supply_chain.py sbom             print requirements.lock as a CycloneDX document
python scripts/supply_chain.py audit ADVISORIES compare requirements-dev.lock with advisories

ADVISORIES is in the OSV format: one JSON file, a folder of them, or a zip archive of them, such as
the export of all advisories for PyPI that osv.dev publishes. Nothing is downloaded.

Exit status of `audit`: 0 no advisory applies, 1 some do, 2 nothing could be checked.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).parent.parent
HOW_TO_GET: Final = (
    "Get the PyPI export of osv.dev (all.zip) where there is a network, then run:"
    " make audit ADVISORIES=path/to/all.zip"
)


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock file."""

    name: str
    version: str
    linux: bool
    """Whether it is installed on Linux, the only system that kaged runs on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An advisory that applies to a locked package."""

    package: Locked
    advisory: str
    summary: str

    def __str__(self) -> str:
        about = f"{self.package.name} {self.package.version}: {self.advisory}"
        return f"{about} {self.summary}".rstrip()


def read_lock(path: Path) -> list[Locked]:
    """Return the packages of a lock file, in its order."""
    found: list[Locked] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith((" ", "#")):
            continue  # hashes of the package above
        wanted = Requirement(line.removesuffix("\\").strip())
        (pin,) = wanted.specifier
        here = wanted.marker is None or wanted.marker.evaluate({"sys_platform": "linux"})
        found.append(Locked(canonicalize_name(wanted.name), pin.version, here))
    return found


# ---- bill of materials


def bill_of_materials(packages: Iterable[Locked], own_version: str) -> dict[str, Any]:
    """Return a CycloneDX 1.6 document: kaged and everything that is installed with it."""
    parts = [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:pypi/{one.name}@{one.version}"),
            "name": one.name,
            "version": one.version,
            "purl": purl,
        }
        for one in packages
        if one.linux
    ]
    own = f"pkg:pypi/kaged@{own_version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "kaged",
                "version": own_version,
                "purl": own,
            }
        },
        "components": parts,
    }


def _own_version() -> str:
    text = (ROOT / "src/kaged/__init__.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


# ---- advisories


def read_advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Yield OSV advisories from a file, a folder or a zip archive. Raises OSError, ValueError."""
    if path.is_dir():
        for one in sorted(path.rglob("*.json")):
            yield json.loads(one.read_bytes())
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield json.loads(archive.read(name))
    else:
        content = json.loads(path.read_bytes())
        yield from content if isinstance(content, list) else [content]


def findings(packages: Iterable[Locked], advisories: Iterable[dict[str, Any]]) -> list[Finding]:
    """Return which advisories apply; withdrawn ones do not."""
    locked = {one.name: one for one in packages}
    return [
        Finding(locked[name], str(advisory.get("id", "?")), str(advisory.get("summary", "")))
        for advisory in advisories
        if "withdrawn" not in advisory
        for affected in advisory.get("affected", ())
        if affected.get("package", {}).get("ecosystem") == "PyPI"
        if (name := canonicalize_name(affected["package"].get("name", ""))) in locked
        if _applies(affected, locked[name].version)
    ]


def _applies(affected: dict[str, Any], version: str) -> bool:
    if version in affected.get("versions", ()):
        return True
    return any(
        _in_range(one.get("events", ()), Version(version))
        for one in affected.get("ranges", ())
        if one.get("type") == "ECOSYSTEM"
    )


def _in_range(events: Iterable[dict[str, str]], version: Version) -> bool:
    """Return whether a version lies in a range of OSV events, which are in order of versions.

    A bound that is no version of PyPI's counts as if it applied: better one look too many.
    """
    inside = False
    for event in events:
        ((kind, text),) = event.items()
        try:
            bound = Version("0" if text == "0" else text)
        except InvalidVersion:
            return True
        if (kind == "introduced" and version >= bound) or (
            kind == "last_affected" and inside and version <= bound
        ):
            inside = True
        elif (kind == "fixed" and version >= bound) or (
            kind == "last_affected" and version > bound
        ):
            inside = False
    return inside


def _audit(place: str) -> int:
    packages = read_lock(ROOT / "requirements-dev.lock")
    if not place:
        print(f"audit: not checked, no advisories were named. {HOW_TO_GET}", file=sys.stderr)
        return 2
    try:
        advisories = list(read_advisories(Path(place)))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"audit: not checked, {place} cannot be read: {error}. {HOW_TO_GET}", file=sys.stderr)
        return 2
    if not advisories:
        print(f"audit: not checked, {place} has no advisory in it. {HOW_TO_GET}", file=sys.stderr)
        return 2
    found = findings(packages, advisories)
    for one in found:
        print(f"audit: {one}")
    print(f"audit: {len(packages)} packages, {len(advisories)} advisories, {len(found)} apply")
    return 1 if found else 0


def main(arguments: list[str]) -> NoReturn:
    """Do what the arguments say."""
    match arguments:
        case ["sbom"]:
            packages = read_lock(ROOT / "requirements.lock")
            print(json.dumps(bill_of_materials(packages, _own_version()), indent=1))
            raise SystemExit(0)
        case ["audit"]:
            raise SystemExit(_audit(""))
        case ["audit", place]:
            raise SystemExit(_audit(place))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

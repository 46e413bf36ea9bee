"""The rows of docs/requirements and the ledger that says where each one stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

ROOT = Path(__file__).resolve().parents[2]
ROWS_DIR = ROOT / "docs" / "requirements"
LEDGER = ROWS_DIR / "status.yaml"
DOCUMENTS = (
    "plugin-host",
    "agent-tooling",
    "service-capabilities",
    "extensions-pipeline",
    "lua-capabilities",
)
LEVELS = ("must", "should", "may")
Status: TypeAlias = Literal["proven", "planned", "declined"]

_WIRING = re.compile(r"\b[Tt]he (host|daemon|outgoing request)\b")
_ID_LINE = re.compile(r"^- id: ([A-Z]{2}-[A-Z]+-\d{2,})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One testable sentence of one document."""

    id: str
    level: str
    document: str
    says: str = ""

    @property
    def is_wiring(self) -> bool:
        """Whether it tells what the running program does, which no part can show by itself."""
        return _WIRING.search(self.says) is not None

    @property
    def area(self) -> str:
        """The part before the number, e.g. `PH-WIRE`."""
        return self.id.rsplit("-", 1)[0]


@dataclass(frozen=True, slots=True)
class Ledger:
    """What we claim: which rows are proven, and why the others are not."""

    proven: frozenset[str]
    planned: dict[str, str]
    declined: dict[str, str]

    def reason(self, row: Row) -> tuple[Status, str] | None:
        """Return the status of an unproven row: an entry for the id, else one for its area."""
        if row.id in self.declined:
            return "declined", self.declined[row.id]
        for key in (row.id, row.area):
            if key in self.planned:
                return "planned", self.planned[key]
        return None


def known_ids() -> frozenset[str]:
    """Read just the ids; cheap enough for every test run."""
    found: list[str] = []
    for name in DOCUMENTS:
        found += _ID_LINE.findall((ROWS_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    return frozenset(found)


def load_rows() -> list[Row]:
    """Read every row of every document, in document order. Duplicate ids are an error."""
    rows: list[Row] = []
    seen: set[str] = set()
    for name in DOCUMENTS:
        text = (ROWS_DIR / f"{name}.yaml").read_text(encoding="utf-8")
        for entry in cast("list[dict[str, str]]", _yaml(text)):
            row = Row(entry["id"], entry["level"], name, " ".join(entry["says"].split()))
            if row.id in seen or row.level not in LEVELS:
                raise ValueError(f"{name}.yaml: {row.id} is repeated or has level {row.level!r}")
            seen.add(row.id)
            rows.append(row)
    return rows


def load_ledger(text: str | None = None) -> Ledger:
    """Read docs/requirements/status.yaml."""
    data = cast("dict[str, object]", _yaml(text or LEDGER.read_text(encoding="utf-8")))
    return Ledger(
        proven=frozenset(cast("list[str] | None", data.get("proven")) or []),
        planned=cast("dict[str, str] | None", data.get("planned")) or {},
        declined=cast("dict[str, str] | None", data.get("declined")) or {},
    )


def check_ledger(rows: list[Row], ledger: Ledger) -> list[str]:
    """List what is wrong with the ledger itself, before any test is asked."""
    ids = {row.id for row in rows}
    areas = {row.area for row in rows}
    problems = [f"{key}: unknown row in proven" for key in sorted(ledger.proven - ids)]
    for kind, entries in (("planned", ledger.planned), ("declined", ledger.declined)):
        allowed = ids | areas if kind == "planned" else ids
        for key, reason in entries.items():
            if key not in allowed:
                problems.append(f"{key}: unknown row in {kind}")
            if not reason.strip():
                problems.append(f"{key}: {kind} without a reason")
            if key in ledger.proven:
                problems.append(f"{key}: both proven and {kind}")
    problems += [
        f"{row.id}: neither proven, planned nor declined"
        for row in rows
        if row.id not in ledger.proven and ledger.reason(row) is None
    ]
    return problems


def _yaml(text: str) -> object:
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))

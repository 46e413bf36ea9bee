"""Well-known services, described as data: `catalogue/<name>.toml` beside this module.

A file has the form of an operator's own description and passes the same checks. Its table
`service` says what an operator would have to write into the settings otherwise.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

from kaged.services.errors import CapabilityInvalidInput

CATALOGUE: Final = Path(__file__).with_name("catalogue")
SETTINGS: Final = ("auth", "auth_header", "auth_prefix", "auth_query", "check_path", "headers")


@cache
def catalogue_names() -> tuple[str, ...]:
    """Return the names of all services in the catalogue."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.toml")))


def catalogue_file(name: str) -> Path:
    """Return the description of a service. Raises CapabilityInvalidInput when there is none."""
    if name not in catalogue_names():
        known = ", ".join(catalogue_names())
        raise CapabilityInvalidInput(f"no service {name[:64]!r} in the catalogue; it has {known}")
    return CATALOGUE / f"{name}.toml"


def catalogue_settings(name: str) -> dict[str, Any]:
    """Return the settings that a service of the catalogue brings along."""
    with catalogue_file(name).open("rb") as file:
        said = tomllib.load(file)["service"]
    return {key: said[key] for key in SETTINGS if key in said}

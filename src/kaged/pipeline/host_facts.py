"""`HostFacts`: what the host knows for every call alike, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kaged.base.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from kaged.kernel.call_facts import ModelIdentity


def _no_classification(_project_id: str | None) -> str | None:
    return None


def _no_model(_alias: str) -> ModelIdentity | None:
    return None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the operator has written down, by project and by model where it differs."""

    environment: str | None = None
    version: str | None = None
    classification: Callable[[str | None], str | None] = _no_classification
    model: Callable[[str], ModelIdentity | None] = _no_model


NO_FACTS = HostFacts()

"""The spawner and places of the integration tests, for attacks that need more than one cage."""

from __future__ import annotations

from integration.cage.conftest import Events, cage_cache, events, place, spawner

__all__ = ["Events", "cage_cache", "events", "place", "spawner"]

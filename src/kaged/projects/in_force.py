"""`agents_in_force`: whether a project's files count as they are, or restricted. One place decides.

The daemon asks it at every load, `kaged cage` before it shows or opens an agent's cage.
"""

from __future__ import annotations

from kaged.base import Clock, Ids
from kaged.config.agents import AgentTree, resolve_agents
from kaged.config.project import Project, load_project
from kaged.config.project_ask import project_ask
from kaged.config.reading import Loaded
from kaged.config.settings import Settings
from kaged.kernel.ask import Ask
from kaged.projects.agreement import Standing
from kaged.store import ProjectRecord, Store


def agents_in_force(
    project: Loaded[Project], ask: Ask, record: ProjectRecord | None, settings: Settings
) -> tuple[Standing, AgentTree]:
    """Return what a project asks for against what was agreed to, and the agents it has by that.

    `record` is None for a project that this daemon never loaded. Pure.
    """
    standing = Standing.of(ask, record)
    tree = resolve_agents(project, settings.daemon, settings.local, restricted=standing.restricted)
    return standing, tree


def agents_in_folder(root: str, settings: Settings, record: ProjectRecord | None) -> AgentTree:
    """Return the agents that a load of this folder would give now. Blocks on the disk.

    Raises:
        ConfigInvalid: its files have errors.
    """
    files = load_project(root)
    _, tree = agents_in_force(files, project_ask(files.value), record, settings)
    return tree


async def read_project_record(root: str, settings: Settings, clock: Clock) -> ProjectRecord | None:
    """Return what is on record of a project, without a daemon; None if it was never loaded.

    Raises:
        StoreError: there is a database, and it cannot be read.
    """
    places = settings.places
    if not Store.is_made(settings.database_url, places.backup_dir):
        return None
    store = await Store.open(
        settings.database_url,
        clock=clock,
        ids=Ids(clock),
        backup_dir=places.backup_dir,
        read_only=True,
    )
    try:
        return await store.projects.at(root)
    finally:
        await store.close()

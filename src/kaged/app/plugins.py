"""`build_plugins`: the plugin host, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from kaged import __version__
from kaged.audit import AuditLog
from kaged.base import Clock, Ids, JsonValue
from kaged.cage import Spawner
from kaged.cage.configured import plugin_limits
from kaged.config.settings import Settings
from kaged.inbox import Inbox
from kaged.plugins.consent import ConsentService
from kaged.plugins.installation import PluginStore
from kaged.plugins.installer import PluginInstaller
from kaged.plugins.knob_write import KnobService
from kaged.plugins.parts import ActivePipeline, HostParts, HostSettings
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.plugin_projects import PluginProjects
from kaged.plugins.plugin_service import PluginService, ReloadProject
from kaged.plugins.settings import model_traits
from kaged.plugins.shared_files import clear_left
from kaged.plugins.sources import SourceFetcher
from kaged.plugins.storage import StorageBroker, StorageQuota
from kaged.plugins.supervisor import PluginSupervisor
from kaged.projects.readiness import Guard, Ready
from kaged.store import Store
from kaged.tools.session_labels import SessionLabels


async def build_plugins(
    settings: Callable[[], Settings],
    environ: Mapping[str, str],
    *,
    spawner: Spawner,
    store: Store,
    audit: AuditLog,
    inbox: Inbox,
    clock: Clock,
    ids: Ids,
    active_pipeline: ActivePipeline,
    labels: SessionLabels,
    on_notification: Callable[[str, str, JsonValue], None],
    reload_project: ReloadProject,
    on_tools: Callable[[], None] | None = None,
    ready: Ready,
    guard: Guard,
) -> PluginService:
    """Put the plugin host together; nothing is started yet."""
    chosen = settings()
    files_dir = chosen.places.cache_dir / "plugin-files"
    await asyncio.to_thread(clear_left, files_dir)
    daemon, places = chosen.daemon.value, chosen.places
    broker = await StorageBroker.open(
        store,
        audit,
        clock,
        ids,
        quota=_quota(daemon.plugins.storage_mb),
        quotas={name: _quota(size) for name, size in daemon.plugins.storage_mb_of.items()},
    )
    plugin_store = PluginStore(
        daemon.plugins.dir or places.plugins_dir,
        data_dir=places.plugin_data_dir,
        local_toml=places.local_toml,
        config_toml=places.config_toml,
        audit=audit,
        clock=clock,
        ids=ids,
        environ=environ,
        limits=lambda name: plugin_limits(settings(), name),
        tables=broker,
    )
    parts = HostParts(
        spawner=spawner,
        audit=audit,
        clock=clock,
        ids=ids,
        settings=HostSettings(
            daemon_version=__version__,
            log_level=daemon.logging.level.value,
            runtimes=daemon.sandbox.runtimes,
            files_dir=files_dir,
            request_timeout_s=daemon.plugins.request_timeout_seconds,
        ),
        storage=broker,
        active_pipeline=active_pipeline,
        labels=labels,
        on_notification=on_notification,
    )

    def may_use(project: str, plugin: HostedPlugin) -> bool:
        return plugin_store.may_use(project, plugin.installed)

    supervisor = PluginSupervisor(
        parts,
        system_config=plugin_store.system_config,
        current=plugin_store.current,
        may_use=may_use,
        on_tools=on_tools,
    )
    installer = PluginInstaller(plugin_store, supervisor)
    fetcher = SourceFetcher(
        spawner, places.data_dir / "quarantine", ids, allowed=daemon.plugins.allow_sources
    )
    consents = ConsentService(installer, fetcher, inbox, audit, ids)
    knobs = KnobService(supervisor, audit, models=lambda: model_traits(settings()))
    return PluginService(
        installer,
        supervisor,
        projects=PluginProjects(supervisor, consents, may_use, guard),
        consents=consents,
        knobs=knobs,
        broker=broker,
        reload_project=reload_project,
        ready=ready,
        session_of=lambda session_id: store.sessions.of_id(session_id),  # noqa: PLW0108 - loaded when first needed
    )


def _quota(storage_mb: int) -> StorageQuota:
    return StorageQuota(database_bytes=storage_mb * 1024 * 1024)

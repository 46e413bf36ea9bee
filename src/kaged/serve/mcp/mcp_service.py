"""`McpService`: agents for MCP clients, and outside MCP servers for agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kaged.audit import AuditEvent
from kaged.base import JsonObject
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.log import get_logger
from kaged.config.agents import AgentTree
from kaged.config.settings import Settings
from kaged.kernel.identity import Actor
from kaged.mcp.configured import plans_of
from kaged.mcp.held_tools import HeldTools
from kaged.mcp.host import McpHost
from kaged.mcp.plan import OutsideParts
from kaged.mcp.states import McpServerState
from kaged.projects.readiness import Guard
from kaged.serve.mcp.endpoint import McpEndpoint
from kaged.serve.mcp.served_agents import ServedAgents

WHAT: Final = "Outside MCP servers whose tools agents may use."
APPROVALS: Final = "mcp-approvals.json"

_log = get_logger("kaged.mcp")


class McpService:
    """MCP in and out, as the HTTP edge and the commands see it."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        host: McpHost,
        held: HeldTools,
        parts: OutsideParts,
        endpoint: McpEndpoint,
        agents: ServedAgents,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard("mcp approvals")
        self._settings = settings
        self._host = host
        self._held = held
        self._parts = parts
        self._agents = agents
        self._approvals_fault = ""
        self.endpoint = endpoint
        if not settings().daemon.value.mcp.servers:
            self._guard.stand()

    async def load(self) -> None:
        """Run the servers that the configuration names now; the others are ended."""
        settings = self._settings()
        try:
            self._parts.approvals.load()
        except (OSError, ValueError) as error:
            # Without knowing what was agreed to, nothing may pass for agreed to.
            self._approvals_fault = f"{APPROVALS} cannot be read: {error}"
            _log.error("mcp.approvals_unreadable", error=str(error))
            self._guard.stand()
            return
        self._approvals_fault = ""
        # Servers are not waited for: none offers a tool before it was held against the approvals.
        self._guard.stand()
        await self._host.use(plans_of(settings), self._parts)

    async def close(self) -> None:
        """Cut clients off and end the servers."""
        await self.endpoint.close()
        await self._host.close()

    # -- projects --------------------------------------------------------------------------------

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Notify the clients of a reloaded project that its tools may have changed."""
        del tree
        self._agents.changed(project_id)

    def project_unloaded(self, project_id: str) -> None:
        """Cut off the clients of a project that is gone."""
        self.endpoint.project_unloaded(project_id)

    def admits(self, owner: str, project_id: str, agent: str, tree: AgentTree) -> bool:
        """Return whether the operator lets a project's agent have tools of an outside server."""
        project = tree.project
        return self._host.admits(owner, agent, (project_id, project.name, str(project.root)))

    # -- servers ---------------------------------------------------------------------------------

    def servers(self) -> Sequence[JsonObject]:
        """Describe every outside server; starts none."""
        broken = self._settings().daemon.value.mcp.servers.broken
        unusable = [
            _unusable(name, "; ".join(str(one) for one in problems))
            for name, problems in sorted(broken.items())
        ]
        return [*(server.status() for server in self._host.servers), *unusable]

    def server(self, name: str) -> JsonObject:
        """Describe one. Raises `mcp_server_not_found`."""
        return self._host.get(name).status()

    async def restart(self, name: str, who: Actor) -> JsonObject:
        """Stop and start one, also one that was given up. Raises `mcp_server_not_found`."""
        server = self._host.get(name)
        self._record("mcp.server_restarted", name, who)
        await server.restart()
        return server.status()

    async def approve(self, name: str, who: Actor) -> JsonObject:
        """Approve its tools as they are now.

        Raises `mcp_server_not_found`, McpServerUnavailable.
        """
        await self._held.approve(name, who)
        return self._host.get(name).status()

    def logs(self, name: str) -> Sequence[str]:
        """Return the last lines of its standard error. Raises `mcp_server_not_found`."""
        return list(self._host.get(name).lines)

    def row(self) -> CheckRow:
        """Return doctor's row."""
        if self._approvals_fault:
            fix = "Mend or remove the file; without it every tool is agreed to anew."
            return CheckRow("mcp", CheckStatus.FAIL, WHAT, self._approvals_fault, fix)
        settings = self._settings().daemon.value.mcp.servers
        servers = self._host.servers
        broken = [f"{name}: config.toml is wrong" for name in sorted(settings.broken)]
        down = [f"{one.name} is {one.state}: {one.note}" for one in servers if _is_down(one.state)]
        held = [one.name for one in servers if one.status()["pending"]]
        if broken or down:
            return CheckRow("mcp", CheckStatus.FAIL, WHAT, "; ".join([*broken, *down]),
                            "See `kaged mcp servers` and `kaged mcp logs NAME`.")  # fmt: skip
        if held:
            return CheckRow("mcp", CheckStatus.WARN, WHAT,
                            f"changed tools are held back: {', '.join(held)}",
                            "Look at them with `kaged mcp servers`, then `kaged mcp approve NAME`.",
                            )  # fmt: skip
        running = sum(one.state is McpServerState.RUNNING for one in servers)
        found = f"{running} of {len(servers)} run" if servers else "none; [mcp.servers] is empty"
        return CheckRow("mcp", CheckStatus.OK, WHAT, found)

    def warnings(self) -> list[str]:
        """Return what is wrong, for the status page; empty when nothing is."""
        row = self.row()
        return [] if row.status is CheckStatus.OK else [f"mcp: {row.cause}"]

    def _record(self, event: str, server: str, who: Actor) -> None:
        self._parts.audit.post(
            AuditEvent(
                event,
                {"server": server, "operator_id": who.person_id},
                request_id=who.request_id,
            )
        )


def _is_down(state: McpServerState) -> bool:
    return state in {McpServerState.CRASHED, McpServerState.FAILED}


def _unusable(name: str, note: str) -> JsonObject:
    return {
        "name": name,
        "state": McpServerState.DISABLED.value,
        "note": note,
        "command": [],
        "pid": None,
        "cage_id": None,
        "failures": 0,
        "restarts": 0,
        "calls": 0,
        "errors": 0,
        "protocol_version": "",
        "claims": "",
        "agents": [],
        "projects": [],
        "pending": 0,
        "tools": [],
    }

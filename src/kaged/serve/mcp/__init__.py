"""One agent's tools for MCP clients: `AgentPort`, `Visit`, `McpDoor`, `NameMap`."""

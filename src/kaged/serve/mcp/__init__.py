"""One agent's tools for MCP clients: `AgentPort`, `Visit`, `McpEndpoint`, `NameMap`."""

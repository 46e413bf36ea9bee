"""One agent's tools for MCP clients: `AgentPort`, `McpClientSession`, `McpEndpoint`, `NameMap`."""

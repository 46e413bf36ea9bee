"""An agent for MCP clients: `ServedAgent`, `McpClientSession`, `McpEndpoint`, `NameMap`."""

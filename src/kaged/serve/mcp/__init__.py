"""MCP server: one agent's tool desk for MCP clients: `AgentPort`, `Visit`, `McpDoor`, `NameMap`."""

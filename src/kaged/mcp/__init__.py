"""MCP client: outside servers, caged and supervised: `McpHost`, `OutsideServer`, `Approvals`."""

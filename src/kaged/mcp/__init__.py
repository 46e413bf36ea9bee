"""MCP client: outside servers, each a caged child process: `McpServer`, `ServerTable`."""

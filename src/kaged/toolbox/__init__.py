"""Built-in tools, one folder per domain. The domains do not know each other."""

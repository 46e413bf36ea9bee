"""kaged: tools, plugins and accounts for AI agents, without handing over the keys."""

__version__ = "0.1.0"

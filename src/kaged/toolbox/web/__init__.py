"""The web: `web.fetch` reads one page for an agent, from hosts that its cage may connect to.

fetch_tool → places (address → destination) → fetching (Dialler, redirects, bounds) →
content (type, text) → html_page (scanner → blocks) → page_cache
"""

from kaged.toolbox.web.fetch_tool import web_tools
from kaged.toolbox.web.fetching import FetchLimits

__all__ = ["FetchLimits", "web_tools"]

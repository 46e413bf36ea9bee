"""The built-in tools put together: `open_toolboxes`, `LanguageServices`, the reference page."""

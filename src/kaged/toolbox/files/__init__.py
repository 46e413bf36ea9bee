"""`file.read`, `file.write`, `file.create` and `edit.text`, as `file_tools` gives them."""

from kaged.toolbox.files.edit import edit_tool
from kaged.toolbox.files.read import read_tool
from kaged.toolbox.files.write import create_tool, write_tool
from kaged.tools import Tool
from kaged.tools.kept_results import KeptResults


def file_tools(kept: KeptResults | None = None) -> tuple[Tool, ...]:
    """Return the tools that work on single files; `kept` are the results that can be read."""
    return (read_tool(kept), write_tool(), create_tool(), edit_tool())


__all__ = ["file_tools"]

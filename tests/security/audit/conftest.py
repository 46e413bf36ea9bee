"""Daemons of their own process, a model server and short folders, as whole tests have them."""

from __future__ import annotations

from whole.conftest import model, model_server, module_path, tmp_path

__all__ = ["model", "model_server", "module_path", "tmp_path"]

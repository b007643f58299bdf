"""Gymnasium's view of the environments, without making `import qposterior` pay for Gymnasium.

Gymnasium has no plugin mechanism, and importing it costs more than all else that the command line needs. So the
environments are registered at once where Gymnasium is loaded already, and otherwise in the moment it is.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def register_environments() -> None:
    """Register every environment with Gymnasium; a second call changes nothing."""
    from gymnasium.envs.registration import register, registry

    from qposterior.environments.registry import ENVIRONMENTS

    for name, entry in ENVIRONMENTS.items():
        if entry.gymnasium_id not in registry:
            register(
                id=entry.gymnasium_id,
                entry_point="qposterior.environments.gymnasium_env:make_gymnasium_env",
                kwargs={"name": name},
            )


def register_when_gymnasium_is_loaded() -> None:
    """Register now if Gymnasium is loaded, else as soon as it has been."""
    if "gymnasium" in sys.modules:
        register_environments()
    elif not any(isinstance(finder, _WaitForGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WaitForGymnasium())


class _WaitForGymnasium(MetaPathFinder):
    """Lets the ordinary machinery import Gymnasium, registers afterwards, and is gone."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run_module = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run_module(module)
                register_environments()

            loader.exec_module = exec_module
        return spec

"""The compiled loops among the code of others."""

from __future__ import annotations


def test_a_function_without_a_module_still_compiles_after_the_import():
    import numba

    import qposterior.model.kernels.compile  # noqa: F401  (listens to what Numba compiles)

    names: dict = {}
    exec("def double(x):\n    return 2 * x", names)
    names["double"].__module__ = None
    assert numba.njit(names["double"])(21) == 42

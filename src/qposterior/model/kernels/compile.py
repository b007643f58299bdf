"""How kernels are compiled: cached on disk, and for loops over particles in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile one loop nest."""
    return cast("Function", numba.njit(cache=True)(function))


def particle_kernel(function: Function) -> Function:
    """Compile a loop over particles; `numba.prange` in it runs them in parallel."""
    return cast("Function", numba.njit(cache=True, parallel=True)(function))


prange = numba.prange

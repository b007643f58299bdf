"""qposterior: how sure can you be about the best action?

The way of the data, and where each part lives:

    world            FiniteMDP, StateActionSpace, solve, Experience: what is and what was seen
    environments     Deep Sea and others, each a function that returns a FiniteMDP
    model            prior × noise × rows × chart, and the Target they make; a prior on the model; the compiled loops
    weighted_draws   Posterior: the only thing that hands out numbers
    inference        enumeration, chains, tempering, models, diagnostics; smc: the samplers that follow the data
    methods          a line for each way of posterior(...) to draw
    arguments, api   posterior(...): from an Experience to a Posterior
    agents           one file each, one protocol
    experiments      explore: an agent in a world; compare: a grid of them; metrics, statistics, folders
    logs             fit: from a log of decisions to an answer
    report           figures, pages, workbooks
    serve            the local page of fit
    cli              the command line

The figures of the paper are a package of their own, `qposterior_paper`.

Public names are those of the stub beside this file, `__init__.pyi`. Each is loaded when it is first used, so that
`import qposterior` is quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

__version__ = "0.1.0"


def _read_stub() -> dict[str, str]:
    """Return the module of every public name: the stub has a line `from .module import Name as Name` for each."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
        return {words[3]: words[1] for words in map(str.split, stub) if words[:1] == ["from"]}


_HOME = _read_stub()
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qposterior' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if "gymnasium" in sys.modules:  # it takes longer to import than all else that the command line needs
    import_module("qposterior.environments.gymnasium_env")  # registers the environments

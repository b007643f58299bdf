"""Whether an argument is what was asked for: a line at the entry of a function, an error that names rule and value."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qposterior.errors import InvalidInputError, unknown_name

WORDS = {"(-inf, inf)": "be finite", "(0, inf)": "be positive and finite", "[0, inf)": "be finite and 0 or more"}


def whole(value: Any) -> int | None:
    """Return a whole number as an int, None for anything else. True is no number."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least `least` as an int."""
    number = whole(value)
    if number is None:
        raise InvalidInputError(f"{name} must be a whole number, got {shown(value)}")
    if number < least:
        raise InvalidInputError(f"{name} must be at least {least}, got {number}")
    return number


def check_number(name: str, value: Any, interval: str = "(-inf, inf)") -> float:
    """Return a number that lies in an interval, written as in "(0, 1]", as a float. True is no number."""
    if type(value) is float:  # as most are: no need to make an array of it
        number = value
    else:
        array = _as_array(value)
        if array.dtype.kind not in "iuf" or array.ndim:
            raise InvalidInputError(f"{name} must be a number, got {shown(value)}")
        number = float(array)
    if not _inside(number, interval):
        raise InvalidInputError(f"{name} must {_words(interval)}, got {number}")
    return number


def _inside(numbers: Any, interval: str) -> Any:
    """Return whether a number, or each of several, lies in an interval; nan lies in none."""
    low, high = _bounds(interval)
    above = numbers >= low if interval[0] == "[" else numbers > low
    return above & (numbers <= high if interval[-1] == "]" else numbers < high)


@cache
def _bounds(interval: str) -> tuple[float, ...]:
    return tuple(map(float, interval[1:-1].split(",")))


def _words(interval: str) -> str:
    return WORDS.get(interval, f"lie in {interval}")


def check_numbers(name: str, value: Any) -> npt.NDArray[np.float64]:
    """Return an array of numbers, of any shape and not necessarily finite, as floats; text is no number."""
    return np.asarray(_numbers(name, value), dtype=np.float64)


def _numbers(name: str, value: Any) -> npt.NDArray[Any]:
    array = _as_array(value)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{name} must be numbers, got {shown(value)}")
    return array


def _as_array(value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal length
        return np.empty(0, dtype=object)


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise unless a shape is the one that is wanted, in which −1 stands for any length."""
    if len(shape) != len(wanted) or any(want not in (-1, had) for want, had in zip(wanted, shape, strict=True)):
        raise InvalidInputError(f"{name} must have shape {_shape_text(wanted)}, got {shape}")


def _shape_text(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join("any" if size < 0 else str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"


def check_one_length(**columns: npt.NDArray[Any]) -> None:
    """Raise unless columns have as many entries each."""
    if len({column.size for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name} {column.size}" for name, column in columns.items())
        raise InvalidInputError(f"columns must be of one length, got {sizes}; give an entry of each or of none")


def check_floats(
    name: str, value: Any, shape: tuple[int, ...], interval: str = "(-inf, inf)"
) -> npt.NDArray[np.float64]:
    """Return an array of numbers of a shape, in which −1 stands for any length, each of them in an interval."""
    array = check_numbers(name, value)
    check_shape(name, array.shape, shape)
    outside = ~_inside(array, interval)
    if outside.any():
        place = ", ".join(map(str, np.argwhere(outside)[0]))
        raise InvalidInputError(f"{name}[{place}] must {_words(interval)}, got {array[outside][0]}")
    return array


def check_indices(
    name: str, value: Any, size: float = np.inf, *, shape: tuple[int, ...] | None = None
) -> npt.NDArray[np.int64]:
    """Return an array of whole numbers from 0 to below `size`, of a shape, in which −1 stands for any length."""
    array = _numbers(name, value)
    if shape is not None:
        check_shape(name, array.shape, shape)
    is_index = (array >= 0) & (array < size)
    if array.dtype.kind == "f":
        is_index &= array == np.floor(array)
    if not is_index.all():
        bad = array[~is_index]
        most = f"from 0 to {size - 1:g}" if np.isfinite(size) else "of 0 or more"
        raise InvalidInputError(f"{name} must be whole numbers {most}, got {float(bad.flat[0]):g}")
    return array.astype(np.int64)


def check_mask(name: str, value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return a mask of true and false, or 1 and 0, of a shape; −1 stands for any length."""
    array = check_numbers(name, value)
    check_shape(name, array.shape, shape)
    if not np.all((array == 0.0) | (array == 1.0)):
        raise InvalidInputError(f"{name} must be a mask of 0 and 1, got {shown(value)}")
    return array.astype(bool)


def check_list(name: str, value: Any, items: str) -> list[Any]:
    """Return the items of something that lists them; text lists nothing."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{name} must be a list of {items}, got {shown(value)}")
    return list(value)


def check_path(name: str, value: Any) -> Path:
    """Return a path, given as such or as text."""
    check_type(name, value, str, PathLike)
    return Path(value)


def check_choice(kind: str, value: Any, known: Iterable[str]) -> str:
    """Return a name that is known; another one raises with the nearest."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise unknown_name(kind, value, known)
    return value


def check_type(name: str, value: Any, *kinds: type) -> None:
    """Raise unless the value is of one of the types."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInputError(f"{name} must be of type {names}, got {shown(value)}")


def check_settings_kind(settings: Any, kind: type) -> None:
    """Raise unless settings are of the kind that a method takes."""
    if not isinstance(settings, kind):
        raise InvalidInputError(f"settings must be {kind.__name__} here, got {type(settings).__name__}")


def lacking(value: Any, names: Iterable[str]) -> list[str]:
    """Return which of these attributes an object lacks; a class in its place lacks its values."""
    lacks = [name for name in names if not hasattr(value, name)]
    return ["its values"] if not lacks and isinstance(value, type) else lacks


def check_callable(name: str, value: Any) -> None:
    """Raise unless the value can be called."""
    if not callable(value):
        raise InvalidInputError(f"{name} must be a function, got {shown(value)}")


def make_rng(seed: Any) -> np.random.Generator:
    """Return the generator of a seed: a whole number or several, a SeedSequence, a Generator; None draws afresh."""
    try:
        if isinstance(seed, bool):
            raise TypeError
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"seed must be whole numbers of 0 or more, a SeedSequence or a Generator, got {shown(seed)}"
        ) from None


def shown(value: Any) -> str:
    """Return a value as a message shows it: in one line, and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"

"""Eight numbers at a time: a vector of the processor as a value in compiled loops.

Particles that run the same loop over the same problem differ in their numbers alone. Where eight of them stand side by
side in memory one instruction does for all, but the compiler does not see it: it would have to prove that what a loop
writes it does not read again. So the loops say it themselves: `load` eight neighbours of a row, compute, `store` them.
The operations are those of single numbers, lane by lane, in the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 8
"""Numbers in a vector: one register of the widest processors, two or four of others."""

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class LanesType(types.Type):
    """Numba's name of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({LANES})")


LANES_TYPE = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of_type: Any) -> None:
        super().__init__(manager, of_type, _VECTOR)


def _operation(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Return what compiled loops call, where `generator` returns its types and writes its instructions."""
    return cast("Callable[..., Any]", intrinsic(generator))


def _address(context: Any, builder: Any, array_type: Any, parts: Any) -> Any:
    """Return the address of the vector that begins at `array[row, column]`."""
    array, row, column = parts
    made = context.make_array(array_type)(context, builder, array)
    shape, strides = (cgutils.unpack_tuple(builder, part) for part in (made.shape, made.strides))
    place = cgutils.get_item_pointer2(context, builder, made.data, shape, strides, array_type.layout, [row, column])
    return builder.bitcast(place, _VECTOR.as_pointer())


@_operation
def load(_: Any, array: Any, row: Any, column: Any) -> Any:
    """Return ``array[row, column : column + LANES]`` of a C-contiguous array of doubles."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], given), align=8)

    return LANES_TYPE(array, types.intp, types.intp), generate


@_operation
def store(_: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
    """Write a vector to ``array[row, column : column + LANES]``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[3], _address(context, builder, signature.args[0], given[:3]), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, LANES_TYPE), generate


@_operation
def splat(_: Any, number: Any) -> Any:
    """Return a vector of one number."""

    def generate(_: Any, builder: Any, __: Any, given: Any) -> Any:
        undefined, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(builder.insert_element(undefined, given[0], first), undefined, everywhere)

    return LANES_TYPE(types.float64), generate


def _arithmetic(instruction: str) -> Callable[..., Any]:
    def operation(_: Any, one: Any, two: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, given: Any) -> Any:
            return getattr(builder, instruction)(*given)

        return LANES_TYPE(LANES_TYPE, LANES_TYPE), generate

    return _operation(operation)


def _choice(relation: str) -> Callable[..., Any]:
    def operation(_: Any, one: Any, two: Any, then: Any, other: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, given: Any) -> Any:
            return builder.select(builder.fcmp_ordered(relation, *given[:2]), *given[2:])

        return LANES_TYPE(LANES_TYPE, LANES_TYPE, LANES_TYPE, LANES_TYPE), generate

    return _operation(operation)


add = _arithmetic("fadd")
subtract = _arithmetic("fsub")
multiply = _arithmetic("fmul")

where_equal = _choice("==")
"""`where_equal(a, b, x, y)`: x in the lanes in which a = b, y in the others; nan is equal to nothing."""

where_less = _choice("<")
"""`where_less(a, b, x, y)`: x in the lanes in which a < b, y in the others."""

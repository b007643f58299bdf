"""Every mutation of `make verify` can be made, and names a test that is there: checked without running any of them."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from mutations import MUTATIONS, ROOT


@cache
def names_of_tests(file):
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.new.split()}")
def test_the_text_of_a_mutation_stands_once_in_its_file_and_its_test_is_there(mutation):
    assert mutation.applied_in(ROOT / "src") != (ROOT / "src" / "qposterior" / mutation.file).read_text()
    file, _, name = mutation.test.partition("::")
    assert name.partition("[")[0] in names_of_tests(file)

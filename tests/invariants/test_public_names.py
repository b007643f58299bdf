"""The public names: one list, loaded when first used, known to type checkers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import qposterior as qp

ROOT = Path(__file__).parents[2]
STUB = ROOT / "src" / "qposterior" / "__init__.pyi"


def in_a_new_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_name_of_the_stub_is_the_one_that_its_module_has():
    lines = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)]
    names = [(line.module, alias.name, alias.asname) for line in lines for alias in line.names]
    assert sorted(name for _, name, _ in names) == qp.__all__ == dir(qp)
    for module, name, asname in names:
        assert name == asname  # type checkers take `import X as X` for public, `import X` not
        assert getattr(qp, name) is getattr(import_module(f"qposterior.{module}"), name)


def test_a_star_brings_every_name():
    printed = in_a_new_python("from qposterior import *; print(*(name for name in dir() if name[0] != '_'))")
    assert printed.split() == qp.__all__


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match=r"^module 'qposterior' has no attribute 'posteriro'$"):
        _ = qp.posteriro
    with pytest.raises(ImportError, match="posteriro"):
        from qposterior import posteriro  # noqa: F401


def test_importing_the_package_loads_nothing_but_its_names():
    code = (
        "import sys; before, finders = set(sys.modules), list(sys.meta_path); import qposterior\n"
        "assert sys.meta_path == finders\n"
        "print(*set(sys.modules) - before)"
    )
    loaded = set(in_a_new_python(code).split())
    assert {name for name in loaded if name.startswith("qposterior")} == {"qposterior"}
    assert {name.split(".")[0] for name in loaded} <= {"qposterior", "importlib", "warnings", "__future__"}


def test_mypy_knows_the_type_of_every_name_and_no_other(tmp_path):
    pytest.importorskip("mypy")
    lines = [f"reveal_type(qp.{name})" for name in (*qp.__all__, "__version__", "posteriro")]
    (tmp_path / "user.py").write_text("\n".join(["import qposterior as qp", *lines]))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    answer = subprocess.run(
        [*command, str(tmp_path / "user.py")],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    *notes, wrong, unknown, total = answer.stdout.splitlines()
    assert len(notes) == len(qp.__all__) + 1, answer
    assert not [note for note in notes if "Revealed type is" not in note or 'type is "Any"' in note]
    assert 'Module has no attribute "posteriro"' in wrong
    assert 'Revealed type is "Any"' in unknown
    assert total.startswith("Found 1 error in 1 file")

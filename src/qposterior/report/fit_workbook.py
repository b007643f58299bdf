"""The answer of a fit as an Excel workbook: what a label contains stays text, never a formula or a link."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from qposterior.extra import import_extra
from qposterior.inference.policies import central_interval
from qposterior.logs.fit import ROW_COLUMNS, Fit
from qposterior.logs.words import UPPER_BOUND, how_recommended, verdict
from qposterior.storage import write_atomically

MADE = datetime(2000, 1, 1)
"""The date in the file: the same answer gives the same bytes."""

WIDEST, LOOKED_AT = 60, 200
"""Of a column, in characters, and the rows by which it is made as wide as it is."""

COLUMNS = [name for name in ROW_COLUMNS if name != "only_action"]
Row = Sequence[str | float]


def write_fit_workbook(fit: Fit, path: str | Path) -> Path:
    """Write policies, actions, trials to come and what was assumed, a sheet each, and return the path."""
    xlsxwriter = import_extra("xlsxwriter", "writing an Excel workbook", extra="xlsx")
    stream = io.BytesIO()
    with xlsxwriter.Workbook(stream, {"in_memory": True}) as book:
        book.set_properties({"created": MADE})
        bold = book.add_format({"bold": True})
        for name, header, rows in _sheets(fit):
            sheet = book.add_worksheet(name)
            sheet.freeze_panes(1, 0)
            for j, title in enumerate(header):
                sheet.write_string(0, j, title, bold)
                longest = max(len(text) for text in (title, *(str(row[j]) for row in rows[:LOOKED_AT])))
                sheet.set_column(j, j, min(WIDEST, longest + 2))
            for i, row in enumerate(rows, start=1):
                for j, cell in enumerate(row):
                    _write(sheet, (i, j), cell)
            if rows:
                sheet.autofilter(0, 0, len(rows), len(header) - 1)
    path = Path(path)
    write_atomically(path, stream.getvalue())
    return path


def _write(sheet: Any, place: tuple[int, int], cell: str | float) -> None:
    """Write text as text, whatever it looks like, a number as a number, and nothing for what is not a number."""
    if type(cell) is str:
        sheet.write_string(*place, cell)
    elif cell == cell:
        sheet.write_number(*place, cell)


def _sheets(fit: Fit) -> Iterator[tuple[str, list[str], list[Row]]]:
    """Yield the name, the header and the rows of each sheet."""
    yield "policies", ["policy", "value", "5 %", "95 %", "P(better than logged)"], list(_policies(fit))
    table = fit.table[COLUMNS].copy()
    table["to do"] = [
        "yes" if fit.policy.get(s) == a else "" for s, a in zip(table["state"], table["action"], strict=True)
    ]
    yield "actions", list(map(str, table)), [tuple(row) for row in table.itertuples(index=False)]
    trials = fit.next_trials()
    yield "try next", list(map(str, trials)), [tuple(row) for row in trials.itertuples(index=False)]
    notes = [check.note for check in fit.checks] + fit.chosen.notes
    if fit.policies is not None:
        notes = [verdict(fit), *notes, *how_recommended(fit)]
    yield "assumptions", ["what was assumed, and whether it fits"], [(note,) for note in notes]


def _policies(fit: Fit) -> Iterator[Row]:
    """Yield what policies are worth, with 90 % intervals."""
    policies, unknown = fit.policies, float("nan")
    if policies is None:
        return
    for name, values, better in (
        ("recommended", policies.recommended.values, policies.prob_better),
        ("logged", policies.logged.values, unknown),
        ("gain over logged", policies.gain, policies.prob_better),
        *((one.name, one.values, float((policies.gain_of(one) > 0.0).mean())) for one in policies.given),
        (UPPER_BOUND, policies.optimum, unknown),
    ):
        yield (name, float(values.mean()), *central_interval(values), better)

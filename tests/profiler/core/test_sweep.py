"""Sweep: the batches, their order and shapes, and the result of their times."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.builders import a_spec
from horologe_common.models import ModelSpec, TensorSpec
from horologe_profiler.core.sweep import Sweep, SweepCell, input_shapes

VARIABLE = (TensorSpec("ids", "INT64", (-1, -1)), TensorSpec("flags", "FP32", (-1, 3)))


def a_variable_spec(**fields: Any) -> ModelSpec:
    return msgspec.structs.replace(a_spec(batch_sizes=(1, 4), **fields), inputs=VARIABLE)


def test_every_batch_size_has_its_turn_again_and_again() -> None:
    sweep = Sweep(a_spec(batch_sizes=(1, 2)), (), 2)
    assert list(sweep.iter_cells()) == [SweepCell(1, 0), SweepCell(2, 0)] * 2
    assert len(sweep) == 4


def test_lengths_are_those_asked_for_or_as_many_as_the_model_takes() -> None:
    assert {cell.length for cell in Sweep(a_variable_spec(), (8, 9), 1).iter_cells()} == {8, 9}
    assert {cell.length for cell in Sweep(a_variable_spec(max_length=100), (), 1).iter_cells()} == {16, 64, 100}
    assert {cell.length for cell in Sweep(a_spec(), (8, 9), 1).iter_cells()} == {0}


def test_shapes_have_the_rows_and_the_length() -> None:
    assert input_shapes(a_variable_spec(), SweepCell(4, 64)) == {"ids": (4, 64), "flags": (4, 3)}


def test_what_failed_is_not_tried_again_and_is_told_of() -> None:
    sweep = Sweep(a_spec(batch_sizes=(1, 2)), (), 3)
    ran = []
    for cell in sweep.iter_cells():
        ran.append(cell.size)
        if cell.size == 2:
            sweep.record_failure(cell, "no")
        else:
            sweep.record_time(cell, 100)
    assert ran == [1, 2, 1, 1]
    rows, _ = sweep.result()
    assert [row.cell.size for row in rows] == [1]
    assert sweep.failed == {SweepCell(2, 0): "no"}


def test_medians_and_the_line_through_them() -> None:
    sweep = Sweep(a_variable_spec(), (10, 50), 3)
    for number, cell in enumerate(sweep.iter_cells()):
        stalled = 10**9 if number == 5 else 0
        sweep.record_time(cell, 1000 + 7 * cell.size * cell.length + stalled)
    rows, fitted = sweep.result()
    assert fitted is not None
    assert fitted.base_ns == pytest.approx(1000, rel=1e-3)
    assert fitted.slope_ns == pytest.approx(7, rel=1e-3)
    assert all(row.fitted_ns == pytest.approx(row.took_ns, rel=1e-3) for row in rows)
    assert max(row.most_ns for row in rows) > 10**9
    assert all(row.runs == 3 for row in rows)


def test_without_any_time_there_is_no_line() -> None:
    assert Sweep(a_spec(), (), 1).result() == ([], None)

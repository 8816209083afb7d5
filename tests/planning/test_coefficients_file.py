"""Coefficients files and files of measured runs: round trip, and errors that name file and field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from horologe_common.interference.measured_runs import MeasuredDevice
from horologe_common.interference.v100 import CALIBRATED
from horologe_planning.interference.coefficients_file import (
    CoefficientsError,
    CoefficientsFile,
    MeasuredRuns,
    Origin,
    read_coefficients,
    read_measurements,
    write_document,
)

if TYPE_CHECKING:
    from pathlib import Path

ORIGIN = Origin("a GPU", "2026-01-31", "abc", "mps", runs=3)
CONTENT = CoefficientsFile(
    CALIBRATED.gpu, tuple(CALIBRATED.models.values()), deviations={"v100": {"frequency_slope": None}}, origin=ORIGIN
)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write_document(path, CONTENT)
    assert read_coefficients(path) == CONTENT
    assert read_coefficients(path).catalogue == CALIBRATED
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpu.json"]


BROKEN = msgspec.structs.replace(CALIBRATED.gpu, max_power_w=-1.0)
TWICE = (*CONTENT.models, CONTENT.models[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (msgspec.structs.replace(CONTENT, gpu=BROKEN), "max_power_w: got -1, wanted a number above 0"),
        (msgspec.structs.replace(CONTENT, models=TWICE), "models: got 'alexnet' twice"),
        (
            msgspec.structs.replace(CONTENT, interference_model="guess"),
            "interference_model: got 'guess', wanted one of",
        ),
    ],
)
def test_invalid_coefficients_name_file_and_field(content: CoefficientsFile, message: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write_document(path, content)
    with pytest.raises(CoefficientsError, match=rf"gpu\.json: .*{message}"):
        read_coefficients(path)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"gpu": 1}', b'{"surprise": 1}'])
def test_a_file_of_something_else_is_an_error(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_bytes(body)
    for read in (read_coefficients, read_measurements):
        with pytest.raises(CoefficientsError, match=r"gpu\.json: "):
            read(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CoefficientsError, match=r"none\.json: No such file"):
        read_coefficients(tmp_path / "none.json")


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    measurements = MeasuredRuns(MeasuredDevice("a GPU", 300, 1530, 50, 1e7), ORIGIN)
    write_document(tmp_path / "runs.json", measurements)
    assert read_measurements(tmp_path / "runs.json") == measurements

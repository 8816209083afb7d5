"""Trace files for planning: what they may contain, and the line of each error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_load.arrivals import read_trace

if TYPE_CHECKING:
    from pathlib import Path


def test_times_count_from_the_first_in_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("1000.5\n1000.5,model\n1001.25\n")
    assert read_trace(path).tolist() == [0, 0, 750_000_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no arrivals"),
        ("1\n\n2\n", "line 2: got '', wanted a time in seconds"),
        ("1\ntwo\n", "line 2: got 'two', wanted a time in seconds"),
        ("-1\n", "line 1: got -1, wanted a time of at least 0 s"),
        ("1\nnan\n", "line 2: got nan, wanted a time of at least 0 s"),
        ("3\n2\n", "line 2: got 2 after 3, wanted the times in order"),
        ("3\n4\n70\n", "line 3: got 66 s without an arrival, wanted at most 60 s"),
    ],
)
def test_what_is_no_trace_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_bounds_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("3\n4\n70\n")
    assert len(read_trace(path, max_gap_s=100)) == 3
    with pytest.raises(ValueError, match="more than 2 lines"):
        read_trace(path, limit=2, max_gap_s=100)

"""Cores of lanes: each worker claims others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_gpu_worker.execution.realtime import CpuClaims

if TYPE_CHECKING:
    from pathlib import Path


def test_lanes_are_pinned_from_four_cores_up_and_never_two_to_one_core(tmp_path: Path) -> None:
    assert CpuClaims(tmp_path).claim({0, 1}) is None
    workers = [CpuClaims(tmp_path) for _ in range(3)]
    places = [worker.claim(set(range(8))) for worker in workers for _ in range(2)]
    assert places == [7, 6, 5, 4, None, None]
    workers[0].release()
    assert workers[2].claim({2, 3, 6, 7}) == 7
    for worker in workers[1:]:
        worker.release()

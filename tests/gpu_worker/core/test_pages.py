"""Pages and input memory: the invariants hold for any sequence of calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.worker_builders import a_ship
from horologe_gpu_worker.core.infer_actions import EarlyInputs, IoCache
from horologe_gpu_worker.core.residency import PageCache
from horologe_gpu_worker.execution.workspace import Workspace

models = st.sampled_from("abcde")


@given(st.lists(st.tuples(models, st.integers(-1, 6)), max_size=40))
def test_pages_are_conserved(steps: list[tuple[str, int]]) -> None:
    cache = PageCache(10)
    for model, pages in steps:
        before, held = cache.free_pages, cache.held.get(model, 0)
        if pages <= 0:
            assert cache.free(model) == held
        else:
            given_to = cache.allocate(model, pages)
            assert given_to == (held > 0 or pages <= before)
            assert cache.held.get(model, 0) == (held or (pages if given_to else 0))
        cache.check()


def test_resident_models_keep_their_order_and_nothing_is_given_twice() -> None:
    cache = PageCache(4)
    assert cache.allocate("b", 1)
    assert cache.allocate("a", 2)
    assert cache.allocate("a", 2)
    assert not cache.allocate("c", 2)
    assert tuple(cache) == ("b", "a")
    assert cache.free_pages == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 40)), max_size=40))
def test_io_cache_never_holds_more_than_its_bound(steps: list[tuple[int, int]]) -> None:
    cache = IoCache(100)
    for action_id, size in steps:
        if size < 0:
            cache.release(action_id)
        else:
            fits = cache.held_bytes + size <= 100
            assert cache.acquire(action_id, size) == fits
        cache.check()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=40))
def test_early_inputs_stay_within_their_bounds(steps: list[tuple[int, int, bool]]) -> None:
    early = EarlyInputs(max_actions=3, limit_bytes=100)
    for action_id, rows, take in steps:
        if take:
            early.pop_inputs(action_id)
            assert action_id not in early
        else:
            ship, buffers = a_ship({1: [1.0] * rows}, action_id)
            for dropped in early.hold_inputs(ship, buffers):
                assert dropped not in early
        early.check()


def test_a_workspace_gives_aligned_pieces_that_do_not_overlap() -> None:
    space = Workspace()
    space.reserve(256)
    first, second = space.allocate(10), space.allocate(100)
    assert first.ctypes.data % 64 == second.ctypes.data % 64 == 0
    first[:], second[:] = 1, 2
    assert first.tolist() == [1] * 10
    grown = space.allocate(1000)
    assert len(grown) == 1000
    assert second.tolist() == [2] * 100
    space.reset()
    assert space.may_contain(space.allocate(8))
    assert not space.may_contain(first.copy())

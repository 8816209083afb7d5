"""Traces of queries: the longest path behind each call, the critical path, and the structure learned from many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_selector.core.pipelines.learned_structure import LearnedStructure
from horologe_selector.core.pipelines.run_trace import RunTrace

A, B, C, D = (("a", 1), ("b", 2), ("c", 3), ("a", 9))


def a_trace(*calls: tuple[tuple[str, int], tuple[int, ...], int, int], begin_ms: int = 0) -> RunTrace:
    """Return a trace of (stage, parents, begin, end in ms); end 0: no outputs."""
    trace = RunTrace(ms(begin_ms))
    for number, (stage, parents, begin, end) in enumerate(calls, 1):
        trace.begin_call(ms(begin), number, stage, parents)
        if end:
            trace.end_call(ms(end), number, ms(end - begin))
    return trace


DIAMOND = a_trace((A, (), 0, 10), (B, (1,), 10, 30), (C, (1,), 10, 60), (D, (2, 3), 60, 80))


def test_remaining_time_is_the_longest_path_behind_a_call() -> None:
    assert DIAMOND.remaining_ns(ms(85)) == {4: ms(5), 3: ms(25), 2: ms(25), 1: ms(75)}
    assert DIAMOND.critical_path() == (4, 3, 1)


def test_the_drivers_own_time_counts() -> None:
    trace = a_trace((A, (), 0, 10), (B, (1,), 14, 20))
    assert trace.remaining_ns(ms(23)) == {2: ms(3), 1: ms(3 + 6 + 4)}


def test_queueing_does_not_count() -> None:
    trace = a_trace((A, (), 0, 10), (B, (1,), 10, 30))
    trace.calls[2].service_ns = ms(5)
    assert trace.remaining_ns(ms(30)) == {2: 0, 1: ms(5)}


def test_a_call_without_outputs_is_on_no_path() -> None:
    trace = a_trace((A, (), 0, 10), (B, (1,), 10, 0))
    assert trace.remaining_ns(ms(50)) == {1: ms(40)}
    assert trace.critical_path() == (1,)


def test_ancestors_of_other_parents_are_left_out() -> None:
    trace = a_trace((A, (), 0, 1), (B, (1,), 1, 2), (C, (1, 2), 2, 3), (D, (1, 3), 3, 4))
    assert [call.parents for call in trace.calls.values()] == [(), (1,), (2,), (3,)]


def test_structure_of_a_conditional_fan_out() -> None:
    learned = LearnedStructure("p", ms(100))
    for number in range(8):
        calls: list[tuple[tuple[str, int], tuple[int, ...], int, int]] = [(A, (), 0, 10)]
        if number % 2:
            calls += [(B, (1,), 10, 20)] * (1 + number // 4)
        if number % 4 == 0:
            calls.append((C, (1,), 10, 20))
        learned.record_answer(ms(30), a_trace(*calls))
    structure = learned.structure()
    assert structure is not None
    structure.validate()
    assert [(stage.name, stage.parents, stage.visits, stage.fan_out) for stage in structure.stages] == [
        ("a", (), 1.0, 1.0), ("b", ("a",), 0.5, 1.5), ("c", ("a",), 0.25, 1.0),
    ]  # fmt: skip
    assert structure.queries == 8
    assert structure.scale_factor("b") == pytest.approx(0.75)


def test_a_stage_behind_an_optional_one() -> None:
    learned = LearnedStructure("p", ms(100))
    for optional in (True, False, False, False):
        if optional:
            learned.record_answer(ms(9), a_trace((A, (), 0, 1), (B, (1,), 1, 2), (C, (2,), 2, 3)))
        else:
            learned.record_answer(ms(9), a_trace((A, (), 0, 1), (C, (1,), 2, 3)))
    structure = learned.structure()
    assert structure is not None
    assert {stage.name: (stage.parents, stage.visits) for stage in structure.stages} == {
        "a": ((), 1.0), "b": (("a",), 0.25), "c": (("a", "b"), 1.0),
    }  # fmt: skip


def test_the_same_model_at_two_places_is_two_stages() -> None:
    learned = LearnedStructure("p", ms(100))
    learned.record_answer(ms(90), DIAMOND)
    structure = learned.structure()
    assert structure is not None
    assert [(stage.name, stage.model, set(stage.parents)) for stage in structure.stages] == [
        ("a", "a", set()), ("b", "b", {"a"}), ("c", "c", {"a"}), ("a#2", "a", {"b", "c"}),
    ]  # fmt: skip
    assert learned.stage_name(D) == "a#2"


def test_estimates_of_the_remaining_time_expire() -> None:
    learned = LearnedStructure("p", ms(100))
    learned.record_answer(ms(85), DIAMOND)
    assert learned.remaining_ns(ms(86), B) == ms(25)
    assert learned.remaining_ns(ms(86) + s(11), B) == 0


graphs = st.lists(
    st.tuples(st.sampled_from([A, B, C, D]), st.lists(st.integers(1, 12), max_size=3), st.integers(0, 9)), max_size=12
)


@given(st.lists(graphs, min_size=1, max_size=5))
def test_a_learned_structure_is_valid(runs: list[list[tuple[tuple[str, int], list[int], int]]]) -> None:
    learned = LearnedStructure("p", ms(100))
    for calls in runs:
        trace, now_ns = RunTrace(0), 0
        for number, (stage, parents, took) in enumerate(calls, 1):
            trace.begin_call(now_ns, number, stage, tuple(parent for parent in parents if parent < number))
            now_ns += ms(took)
            if took:
                trace.end_call(now_ns, number, ms(took))
        learned.record_answer(now_ns, trace)
        assert all(0 <= remaining <= now_ns for remaining in trace.remaining_ns(now_ns).values())
    if (structure := learned.structure()) is not None:
        structure.validate()
        assert structure.queries == len(runs)

"""Rows of ORLOJ's tables as workloads: execution times, arrivals, statements of the paper, and margins in a row."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_experiments.orloj import critical, llm
from horologe_experiments.orloj.cases import C0_SHARE, Case, all_cases, table_rows
from horologe_experiments.orloj.contest import margin
from horologe_experiments.orloj.workloads import build_case, build_row, draw_arrivals
from horologe_experiments.traces.azure_functions import read_calls
from horologe_sim.scenario.scenario import CATALOGUE_SIZES as SIZES

MANY = 20_000


def test_there_are_125_rows_of_25_cases() -> None:
    assert [sum(row.case.table == table for row in table_rows()) for table in (2, 3, 4, 5)] == [25, 40, 10, 50]
    assert len(all_cases()) == 25
    assert {row.case for row in table_rows()} == set(all_cases())
    assert [row.slo_x_p99 for row in table_rows()[:5]] == [1.5, 2, 3, 4, 5]
    assert table_rows()[4].paper == (0.20, 0.25, 0.57, 1.00)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_solo_times_have_the_mean_and_the_p99_of_the_case(case: Case) -> None:
    workload = build_case(case, 1.0, 1.0, MANY, 0)
    assert workload.solo_ns.mean() == pytest.approx(ms(case.mean_ms), rel=0.01)
    assert workload.slo_ns == pytest.approx(np.quantile(workload.solo_ns, 0.99), rel=0.01)
    if case.p99_ms:
        assert workload.slo_ns == ms(case.p99_ms)
    for place, solos in enumerate(workload.solos_ns):
        drawn = workload.solo_ns[workload.application == place]
        assert drawn.mean() == pytest.approx(solos.mean(), rel=0.01)
        assert np.isin(drawn, solos).all()


def test_a_batch_is_padded_to_its_longest_and_to_a_size() -> None:
    case = all_cases()[0]
    workload = build_case(case, 1.0, 1.0, 2, 0)
    c0_ns = round(C0_SHARE * ms(case.mean_ms))
    longest_ns = int(workload.solo_ns.max())
    assert workload.batching.batch_ns(1, longest_ns) == longest_ns
    assert workload.batching.batch_ns(3, longest_ns) == c0_ns + 4 * (longest_ns - c0_ns)
    with pytest.raises(ValueError, match="requests"):
        workload.batching.batch_ns(17, longest_ns)


def test_static_models_have_the_times_of_clockwork() -> None:
    (case,) = [one for one in all_cases() if one.name == "resnet-imagenet"]
    workload = build_case(case, 2.0, 100.0, 10, 0)
    assert set(workload.solo_ns) == {ms(2.61)}
    assert [workload.batching.batch_ns(size, ms(2.61)) for size in SIZES] == [
        ms(one) for one in (2.61, 3.78, 5.61, 9.13, 15.67)
    ]


def test_arrivals_of_two_rates_differ_only_in_scale() -> None:
    slow, fast = draw_arrivals(1.0, 500, 3), draw_arrivals(4.0, 500, 3)
    assert np.abs(slow - 4 * fast).max() <= 4
    assert (np.diff(slow) >= 0).all()
    assert slow[-1] == pytest.approx(500e9, rel=0.02)
    assert (draw_arrivals(1.0, 500, 4) != slow).any()


def test_arrivals_follow_the_trace() -> None:
    """Compare the counts of each minute. Random counts of a thousand differ by about 3%."""
    times = draw_arrivals(1.0, 480_000, 0)
    counts = np.bincount((times * 480 // 480_000_000_000_000).clip(max=479), minlength=480)
    assert np.corrcoef(counts, read_calls().sum(0))[0, 1] > 0.9
    assert counts / counts.mean() == pytest.approx(read_calls().sum(0) / read_calls().sum(0).mean(), abs=0.15)


def test_requests_of_a_language_model_are_those_of_the_trace() -> None:
    trace = llm.read_trace()
    assert len(trace.context) == 19_366
    workload = llm.build_llm(2.0, 1.0, 1000, 5)
    assert workload.arrival_ns[-1] == pytest.approx(1000e9)
    begin = next(
        at
        for at in range(len(trace.context))
        if (trace.context[at : at + 1000] == workload.length[: 19_366 - at]).all()
    )
    generated = trace.generated[begin : begin + 1000]
    known_ns = workload.solo_ns - llm.CONTEXT_NS * workload.length - llm.GENERATED_NS * generated
    assert set(known_ns) == {llm.c0_ns(trace)}
    assert workload.solos_ns[0].mean() * C0_SHARE == pytest.approx(llm.c0_ns(trace), rel=1e-6)
    with pytest.raises(ValueError, match="requests"):
        llm.build_llm(2.0, 1.0, 20_000, 0)


def test_there_is_a_critical_rate_for_every_case() -> None:
    """Check the range: above the rate one by one, below the rate if all requests had the shortest time."""
    assert set(critical.critical_rates()) == {case.name for case in all_cases()} | {critical.LLM}
    for case in all_cases():
        workload = build_case(case, critical.SLO_X_P99, 1.0, 2, 0)
        shortest_s = workload.batching.batch_ns(16, int(min(one.min() for one in workload.solos_ns))) / 16e9
        assert 1e3 / case.mean_ms < critical.critical_rates()[case.name] < 1 / shortest_s


def test_the_same_seed_builds_the_same_rows() -> None:
    one, other = build_row(table_rows()[70], 3.0, 100, 9), build_row(table_rows()[70], 3.0, 100, 9)
    for field in ("arrival_ns", "solo_ns", "application", "length"):
        assert (getattr(one, field) == getattr(other, field)).all()


NOISE = [0.03, -0.03, 0.02, -0.02, 0.01, -0.01, 0.03, -0.03, 0.02, -0.02]


def rates(ours: float, noise: list[float]) -> dict[str, list[float]]:
    return {"horologe": [0.5 + ours + one for one in noise], "edf": [0.5] * len(noise)}


def test_more_seeds_of_the_same_noise_narrow_the_limit() -> None:
    assert margin(rates(0.0, NOISE * 3), False)[0] > margin(rates(0.0, NOISE), False)[0]


def test_the_margin_is_a_lower_limit_of_the_difference_from_the_best_other() -> None:
    finished = rates(0.1, NOISE) | {"orloj": [0.55] * len(NOISE)}
    lowest, against = margin(finished, False)
    assert against == "orloj"
    assert 0.02 < lowest < 0.05


def test_with_few_seeds_the_margin_is_the_mean() -> None:
    mean, against = margin(rates(0.1, [0.02, -0.02]), False)
    assert mean == pytest.approx(0.1)
    assert against == "edf"

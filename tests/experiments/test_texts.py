"""Texts of several applications: distributions, determinism by seed, and one result for each text."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from horologe_common.clock import ms, s
from horologe_common.status import Refused
from horologe_experiments.live.finish_rates import rates_of_run, settled_s, window_rates
from horologe_experiments.live.text_traffic import (
    Text,
    TextResult,
    TextSource,
    TextTraffic,
    inputs_of,
    poisson_texts,
    share_one_at_a_time,
)
from horologe_load.samples import ClientOutcome

CHAT = TextSource("chat", 0.75, 24, 0.6, 4, 128)
DOCUMENT = TextSource("document", 0.25, 240, 0.3, 96, 512)


def test_arrivals_follow_the_applications_and_repeat_by_seed() -> None:
    texts, again, other = (poisson_texts((CHAT, DOCUMENT), 500, 20, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert texts == again != other
    assert texts == sorted(texts)
    assert 9_000 < len(texts) < 11_000
    assert 0 <= texts[0].at_ns <= texts[-1].at_ns < s(20)
    chats = [text.length for text in texts if text.application == 0]
    documents = [text.length for text in texts if text.application == 1]
    assert 0.72 < len(chats) / len(texts) < 0.78
    assert 22 < np.median(chats) < 26
    assert 230 < np.median(documents) < 250
    assert 4 <= min(chats) <= max(chats) <= 128
    assert 96 <= min(documents) <= max(documents) <= 512


def test_a_text_is_a_row_of_tokens_and_its_mask() -> None:
    made = inputs_of(7, 3)
    assert {name: (array.shape, str(array.dtype)) for name, array in made.items()} == {
        "tokens": ((1, 7), "int64"),
        "mask": ((1, 7), "float32"),
    }
    assert made["mask"].all()


def test_one_at_a_time_skips_late_texts() -> None:
    texts = [Text(0, 0, 1), Text(1, 0, 1), Text(2, 0, 1), Text(40, 0, 1)]
    assert share_one_at_a_time(texts, [10.0] * 4, 20) == 0.75
    assert share_one_at_a_time(texts, [10.0] * 4, 28) == 1
    assert share_one_at_a_time(texts, [21.0] * 4, 20) == 0


class FakeClient:
    """Client that answers chats at once, refuses documents, and answers a text of 13 tokens too late."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, float]] = []

    def submit(self, model: str, inputs: Any, *, slo_ms: float, application: str, version: str) -> asyncio.Future[Any]:
        length = inputs["tokens"].shape[1]
        self.requests.append((length, application, slo_ms))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if application == "document":
            future.set_exception(Refused("no"))
        else:
            wait_s = 1.01 * slo_ms / 1e3 if length == 13 else 0.0
            reply = type("Reply", (), {"batch_size": 2, "cached": False})()
            asyncio.get_running_loop().call_later(wait_s, future.set_result, reply)
        return future


def test_every_text_has_a_result_counted_from_its_arrival_time() -> None:
    texts = [Text(-s(21), 0, 6), Text(-s(10), 0, 13), Text(0, 0, 5), Text(1, 1, 9)]
    client = FakeClient()
    traffic = TextTraffic(client, "m", ["chat", "document"], s(20))  # type: ignore[arg-type]
    results = {one.text.length: one for one in asyncio.run(traffic.run(texts))}
    assert {length: one.outcome for length, one in results.items()} == {
        5: ClientOutcome.OK,
        9: ClientOutcome.REFUSED,
        13: ClientOutcome.LATE,
        6: ClientOutcome.UNSENT,
    }
    assert (results[5].batch_size, results[9].batch_size) == (2, 0)
    assert results[6].took_ns >= s(21)
    assert [(length, application) for length, application, _ in client.requests] == [
        (13, "chat"),
        (5, "chat"),
        (9, "document"),
    ]
    assert client.requests[0][2] <= 10_000 < client.requests[1][2] <= 20_000


def test_rates_are_shares_of_all_of_each_application_and_of_each_window() -> None:
    ends = [ClientOutcome.OK, ClientOutcome.REFUSED, ClientOutcome.LATE, ClientOutcome.OK]
    results = [TextResult(Text(s(at), at % 2, 5), ms(10), status, 2) for at, status in enumerate(ends)]
    rates = rates_of_run(["chat", "document", "none"], results)
    assert [rates[name] for name in ("finished", "chat", "document", "none")] == [0.5, 0.5, 0.5, 0]
    assert [rates[name] for name in ("refused", "late", "p50_ms", "batch")] == [0.25, 0.25, 10, 2]
    assert window_rates(4, 2, [results, results[:1]]) == [(0, 0.6667), (2, 0.5)]
    assert rates_of_run(["chat"], [results[1]])["p99_ms"] == 0


@pytest.mark.parametrize(
    ("rates", "settled"),
    [
        ([0.9] * 6, 0),
        ([0.1, 0.5, 0.89, 0.9, 0.9, 0.9], 10),
        ([1.0, 1.0, 1.0, 0.8, 0.8, 0.8], 0),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], 15),
        ([], None),
    ],
)
def test_the_rate_settles_when_it_first_reaches_its_final_level(rates: list[float], settled: float | None) -> None:
    assert settled_s([(5.0 * at, rate) for at, rate in enumerate(rates)]) == settled

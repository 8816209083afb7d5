"""Inputs are copied between the pieces of a LOAD, whose size follows from the rate of the link."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from horologe_gpu_worker.runtimes.pytorch import copy_order
from horologe_gpu_worker.runtimes.pytorch.copy_order import FIRST_BYTES, PIECE_NS, CopyOrder


def test_an_input_waits_for_one_piece_and_a_load_goes_on_between_inputs() -> None:
    order, copies, started, proceed = CopyOrder(), [], Event(), Event()
    inputs_waiting = 3

    def copy_input() -> None:
        for _ in range(inputs_waiting):
            with order.input_copy():
                copies.append("input")

    thread = Thread(target=copy_input)

    def copy_piece(begin: int, end: int) -> None:
        copies.append("piece")
        if not started.is_set():
            started.set()
            thread.start()
            while not order._waiting_inputs:
                proceed.wait(0.001)

    order.copy_pieces(8 * FIRST_BYTES, copy_piece)
    thread.join()
    assert copies[:2] == ["piece", "input"]
    assert copies.count("input") == inputs_waiting
    assert copies.count("piece") > 1


@pytest.mark.parametrize(("gb_s", "megabytes"), [(6, 2.1), (12, 4.2), (55, 19.2), (900, 67.1), (0.5, 1.05)])
def test_pieces_are_as_large_as_the_link_copies_in_their_time(
    gb_s: float, megabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, now_ns = CopyOrder(), 0.0
    pieces: list[tuple[int, int]] = []
    monkeypatch.setattr(copy_order, "perf_counter_ns", lambda: int(now_ns))

    def copy_piece(begin: int, end: int) -> None:
        nonlocal now_ns
        now_ns += (end - begin) / gb_s
        pieces.append((begin, end))

    order.copy_pieces(1 << 30, copy_piece)
    assert order.piece_bytes / 1e6 == pytest.approx(megabytes, rel=0.02)
    assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == 1 << 30
    if gb_s > 5:
        assert all((end - begin) / gb_s <= 1.01 * PIECE_NS for begin, end in pieces)


def test_a_copy_that_fails_lets_the_next_one_go() -> None:
    order = CopyOrder()

    def fail(begin: int, end: int) -> None:
        raise OSError("the device is lost")

    with pytest.raises(OSError, match="the device is lost"):
        order.copy_pieces(1, fail)
    with order.input_copy():
        pass

"""When a batch of a static model waits for the next larger size on a busy device."""

from __future__ import annotations

from desk import NOW, Desk
from horologe_common.clock import ms, us
from horologe_controller.core.cluster.estimates import Estimate


def started_at_once(batch_ns: int) -> bool:
    """Keep a share busy with batches of another model. Return whether one request of `m` then starts at once.

    `m` is asked once in a millisecond. Its batch of one takes `batch_ns`, of two a tenth more.
    """
    desk = Desk("horologe", [("m", "busy")], ("m", "busy"))
    share = next(iter(desk.cluster.shares()))
    seed_ns = {size: batch_ns * (9 + size) // 10 for size in desk.specs["m"].batch_sizes}
    share.estimates["m/1"] = Estimate({0: ms(1), **seed_ns}, share.pace)
    now_ns = NOW
    for _ in range(300):
        desk.ask(now_ns, 200)
        for _ in range(16):
            desk.ask(now_ns, 200, model="busy")
        for action in desk.plan(now_ns)[0]:
            desk.end(action, action.end_ns)
            now_ns = max(now_ns, action.end_ns)
        now_ns += us(100)
        for action in desk.plan(now_ns)[0]:
            desk.end(action, action.end_ns)
            now_ns = max(now_ns, action.end_ns)
    while len(desk.scheduler):
        now_ns += us(100)
        for action in desk.plan(now_ns)[0]:
            desk.end(action, action.end_ns)
    desk.ask(now_ns, 200)
    return bool(desk.plan(now_ns)[0])


def test_a_batch_waits_only_where_larger_batches_save_device_time() -> None:
    assert not started_at_once(ms(4))
    assert started_at_once(us(10))

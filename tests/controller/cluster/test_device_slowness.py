"""The cached slowness of shares equals their present slowness."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from horologe_common import wire
from horologe_common.clock import ms, s
from horologe_controller.core.cluster.lane import Action
from horologe_controller.core.cluster.message_latency import MessageLatency
from horologe_controller.core.cluster.share import ClusterChanges, ModelResidency, Share
from horologe_controller.core.scheduling.loading.demand import ShareLoads

steps = st.lists(
    st.tuples(
        st.sampled_from(["infer", "load", "end", "wait"]),
        st.integers(0, 2),
        st.sampled_from([0, ms(1), ms(125), ms(249), ms(251), s(3), s(9), s(11)]),
    ),
    max_size=80,
)


@given(steps)
def test_the_cached_slowness_is_that_of_each_share(steps: list[tuple[str, int, int]]) -> None:
    """An INFER is sent without marking the share; a LOAD and the end of an action mark it."""
    holders, latency, loads = ModelResidency(ClusterChanges()), MessageLatency(), ShareLoads()
    shares = [Share("w", wire.Share(number, "d", 10), number, holders, latency) for number in range(3)]
    now_ns = s(100)
    for share in shares:
        loads.mark_share(share)
    for number, (verb, place, value) in enumerate(steps):
        share = shares[place]
        if verb == "wait":
            now_ns += value
        elif verb in ("infer", "load"):
            lane = share.exec if verb == "infer" else share.load
            lane.append_action(_action(share, number, lane.free_at(now_ns), value))
            if verb == "load":
                loads.mark_share(share)
        else:
            for lane in (share.exec, share.load):
                if lane.pending:
                    lane.finish_action(next(iter(lane.pending.values())), now_ns - value)
            share.pace.observe(now_ns, 900 + value // ms(1))
            loads.mark_share(share)
        loads.update(now_ns)
        for one in shares:
            hangs = one.hangs(now_ns)
            assert loads.of[one].slowness == (math.inf if hangs else one.slowness(now_ns))


def _action(share: Share, number: int, start_ns: int, takes_ns: int) -> Action:
    return Action(number, share, "m", 1, [], 0, start_ns, takes_ns)

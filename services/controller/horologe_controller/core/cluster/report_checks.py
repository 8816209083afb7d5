"""Checks of a worker's messages: what is out of range reaches neither cluster nor scheduler, and the rest is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.model_limits import DURATION_MAX_NS, MEMORY_MAX_BYTES, check_number, check_profile, check_spec
from horologe_common.models import PAGE_BYTES, ModelSpec
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import DeviceInfo, ModelReport, Result

if TYPE_CHECKING:
    from horologe_common.wire import Pong, Register, Share


def check_register(message: Register) -> Register:
    """Return the report with what can be used.

    A model out of range is in it without a profile, with the reason. A share out of range is not in it; if no share is
    left, the reason is that of every model.
    """
    models = tuple(map(_check_report, message.models))
    shares: list[Share] = []
    fault = ""
    for share in message.shares:
        try:
            _check_share(share, {other.share for other in shares})
            shares.append(share)
        except InvalidInput as error:
            fault = f"share {share.share}: {error.reason}"
    if fault and not shares:
        models = tuple(msgspec.structs.replace(model, profile=None, reason=fault) for model in models)
    device_info = message.device_info
    try:
        check_number("memory_bytes", device_info.memory_bytes, 0, MEMORY_MAX_BYTES)
        check_number("power_cap_w", device_info.power_cap_w, 0, 1e6)
    except InvalidInput:  # only shown; 0: not known
        device_info = DeviceInfo(device_info.id, device_info.type)
    return msgspec.structs.replace(message, models=models, shares=tuple(shares), device_info=device_info)


def failed_result(worker: str, result: Result) -> Result:
    """Return a result whose durations are out of range as FAILED with the reason, and an end that is now."""
    took_ns, device_ns = result.end_ns - result.begin_ns, result.device_ns
    reason = f"{worker}: got a duration of {took_ns} ns ({device_ns} on the device), wanted 0 to {DURATION_MAX_NS}"
    return Result(result.action_id, int(Status.FAILED), NEVER_NS, NEVER_NS, reason=reason)


def is_clock_sample(now_ns: int, pong: Pong) -> bool:
    """Return whether a Pong answers a Ping of the past, with a time that the windows of actions can have."""
    return 0 <= pong.sent_ns <= now_ns and 0 <= pong.peer_ns <= NEVER_NS


def _check_report(report: ModelReport) -> ModelReport:
    spec = report.spec
    try:
        check_spec(spec)
        if report.profile is not None:
            check_profile(report.profile)
    except InvalidInput as error:
        reason = error.reason if report.profile is not None else report.reason
        return ModelReport(ModelSpec(spec.name, spec.version, spec.runtime, (), ()), None, reason)
    return report


def _check_share(share: Share, others: set[int]) -> None:
    check_number("share", share.share, 0, 1024)
    if share.share in others:
        raise InvalidInput(f"share: got {share.share} twice, wanted each once")
    check_number("pages_total", share.pages_total, 0, MEMORY_MAX_BYTES // PAGE_BYTES)
    check_number("percent", share.percent, 1e-3, 100)

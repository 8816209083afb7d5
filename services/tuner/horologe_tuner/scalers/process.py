"""Workers as processes of this machine: `horologe up` starts and drains them, by its control socket.

A request is a line `{"workers": {"v100": 3}}` in JSON, or `{"workers": {}}` to count only. With `"shares": [...]`, it
also has all wanted shares of devices. The answer is a line with the workers that run, by hardware type, and the workers
of shares, or `{"error": "..."}`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_tuner.scaler import ScalingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare
    from horologe_tuner.settings import TunerSettings

TIMEOUT_S = 10.0
ANSWER_BYTES = 256 << 10


class ControlAnswer(msgspec.Struct):
    """Answer of the control socket."""

    workers: dict[str, int] = {}
    shares: tuple[str, ...] = ()
    error: str = ""


class ProcessScaler:
    """Calls the control socket of `horologe up`."""

    def __init__(self, settings: TunerSettings) -> None:
        if not settings.scaler_target:
            raise SettingsError("setting tuner.scaler_target: got '', wanted the control socket of `horologe up`")
        self._path = settings.scaler_target.removeprefix("unix://")

    def count_workers(self, hardware: tuple[str, ...]) -> Mapping[str, int]:
        """See `Scaler`."""
        running = self._call({}).workers
        return {name: running.get(name, 0) for name in hardware}

    def set_workers(self, hardware: str, count: int) -> None:
        """See `Scaler`. Workers that drain do not count any more."""
        self._call({hardware: count})

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """See `Scaler`. Raises ScalingError also while a worker of the same name drains."""
        return self._call({}, wanted).shares

    def _call(self, workers: Mapping[str, int], shares: Sequence[WantedShare] | None = None) -> ControlAnswer:
        request = {"workers": workers} if shares is None else {"workers": workers, "shares": shares}
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(self._path)
                connection.sendall(msgspec.json.encode(request) + b"\n")
                with connection.makefile("rb") as lines:
                    answer = msgspec.json.decode(lines.readline(ANSWER_BYTES), type=ControlAnswer)
        except (OSError, msgspec.MsgspecError) as error:
            raise ScalingError(f"control socket {self._path}: {error or type(error).__name__}") from error
        if answer.error:
            raise ScalingError(f"control socket {self._path}: {answer.error}")
        return answer

"""Physical devices, as the controller sees them: each has the shares of the workers that report its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import instance

if TYPE_CHECKING:
    from horologe_common.wire import DeviceInfo
    from horologe_controller.core.cluster.share import Share


class Device:
    """A physical device with its connected shares, in the order of registration."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.shares: dict[Share, bool] = {}

    @property
    def percent(self) -> float:
        """Sum of the shares. Over 100 while a share is replaced by one of another size, or by a mistake in settings."""
        return sum(share.percent for share in self.shares)


class Devices:
    """All devices with connected shares. A worker that reports no id has a device of its own."""

    def __init__(self) -> None:
        self.by_id: dict[str, Device] = {}
        self._device_of: dict[Share, Device] = {}

    def add_share(self, share: Share, info: DeviceInfo) -> None:
        """Add a share to its device. The device adopts the latest report of its type, memory and power limit."""
        if not info.id:
            info = msgspec.structs.replace(info, id=instance(share.worker))
        device = self.by_id.setdefault(info.id, Device(info))
        device.info = info
        device.shares[share] = True
        self._device_of[share] = device

    def remove_share(self, share: Share) -> None:
        """Remove the share of a lost worker, and its device if that was the last share."""
        device = self._device_of.pop(share)
        del device.shares[share]
        if not device.shares:
            del self.by_id[device.info.id]

    def of(self, share: Share) -> Device:
        """Return the device of a connected share."""
        return self._device_of[share]

    def check(self) -> None:
        """Assert that every share is on exactly one device."""
        assert sum(len(device.shares) for device in self.by_id.values()) == len(self._device_of)
        assert all(share in device.shares for share, device in self._device_of.items())

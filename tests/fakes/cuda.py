"""A fake CUDA driver: memory mapping with the same calls, return codes and rules."""

from __future__ import annotations

from typing import Any

GRANULARITY = 2 << 20
OK, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
TEXTS = {INVALID_VALUE: b"invalid argument", OUT_OF_MEMORY: b"out of memory"}


class FakeCuda:
    """The driver library. `room`: bytes of device memory. `fail`: names of calls that return INVALID_VALUE.

    A violation returns INVALID_VALUE, as with the real driver: mapping over a mapping, unmapping part of one, releasing
    a page that is mapped, access to addresses with nothing there.
    """

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.fail: set[str] = set()
        self.pages: dict[int, int] = {}
        self.ranges: dict[int, int] = {}
        self.mapped: dict[int, tuple[int, int]] = {}  # address -> (size, page)
        self.accessible: set[int] = set()
        self.current = 0
        self._next = 1

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name not in ("current", "cuGetErrorString"):
            if name in self.fail:
                return lambda *arguments: INVALID_VALUE
            if name.startswith("cuMem") and not self.current:
                return lambda *arguments: 201  # CUDA_ERROR_INVALID_CONTEXT
        return super().__getattribute__(name)

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = TEXTS.get(code, b"other")
        return OK

    def cuDeviceGet(self, number: Any, device: int) -> int:
        number._obj.value = device
        return OK

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: int) -> int:
        text.value = f"0000:{device:02x}:00.0".encode()
        return OK

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        value._obj.value = int(attribute == 102)
        return OK

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 0xC0
        return OK

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.current or None
        return OK

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.current = context.value
        return OK

    def cuMemGetAllocationGranularity(self, size: Any, properties: Any, option: int) -> int:
        assert (properties._obj.type, properties._obj.location.type) == (1, 1)
        size._obj.value = GRANULARITY
        return OK

    def cuMemCreate(self, handle: Any, size: int, properties: Any, flags: int) -> int:
        if size % GRANULARITY or flags:
            return INVALID_VALUE
        if sum(self.pages.values()) + size > self.room:
            return OUT_OF_MEMORY
        handle._obj.value = self._next
        self.pages[self._next] = size
        self._next += 1
        return OK

    def cuMemRelease(self, handle: int) -> int:
        if any(page == handle for _, page in self.mapped.values()):
            return INVALID_VALUE
        return OK if self.pages.pop(handle, None) else INVALID_VALUE

    def cuMemAddressReserve(self, address: Any, size: int, alignment: int, wanted: int, flags: int) -> int:
        begin = max([1 << 32, *(at + length for at, length in self.ranges.items())])
        address._obj.value = begin
        self.ranges[begin] = size
        return OK

    def cuMemAddressFree(self, address: int, size: int) -> int:
        if self.ranges.get(address) != size or self._within(address, size):
            return INVALID_VALUE
        del self.ranges[address]
        return OK

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> int:
        inside = any(at <= address and address + size <= at + length for at, length in self.ranges.items())
        if not inside or offset or flags or self.pages.get(handle) != size or self._within(address, size):
            return INVALID_VALUE
        self.mapped[address] = (size, handle)
        return OK

    def cuMemSetAccess(self, address: int, size: int, access: Any, count: int) -> int:
        ranges = self._within(address, size)
        if sum(self.mapped[at][0] for at in ranges) != size or count != 1 or access._obj.flags != 3:
            return INVALID_VALUE
        self.accessible.update(ranges)
        return OK

    def cuMemUnmap(self, address: int, size: int) -> int:
        ranges = self._within(address, size)
        if not ranges or sum(self.mapped[at][0] for at in ranges) != size:
            return INVALID_VALUE
        for at in ranges:
            del self.mapped[at]
            self.accessible.discard(at)
        return OK

    def check(self) -> None:
        """Check that mapped memory is accessible and that no page is mapped twice."""
        assert self.accessible == set(self.mapped)
        pages = [page for _, page in self.mapped.values()]
        assert len(set(pages)) == len(pages)

    def _within(self, address: int, size: int) -> list[int]:
        return [at for at, (length, _) in self.mapped.items() if at < address + size and address < at + length]

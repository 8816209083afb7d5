"""A link between two network namespaces that delays each packet: for kernels without the queueing discipline netem.

    python -m bench.slow_link HOST ADDRESS HOST ADDRESS DELAY_S

Each namespace gets a TUN device. This process moves the packets, in both directions, until it is killed. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

CLONE_NEWNET, TUNSETIFF, TUN_WITHOUT_HEADER = 0x40000000, 0x400454CA, 0x1001
DEVICE, PACKET_BYTES, QUEUE = "link0", 65536, 100_000


def open_device(host: str, address: str) -> int:
    """Create the device in the namespace `host`, with this address. Return its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{host}") as other:
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {host}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), TUN_WITHOUT_HEADER))
        for command in (
            ("addr", "add", f"{address}/24", "dev", DEVICE),
            ("link", "set", DEVICE, "up", "txqueuelen", "10000"),
        ):
            subprocess.run(["ip", *command], check=True)
        libc.setns(home.fileno(), CLONE_NEWNET)
    return device


def forward(devices: tuple[int, int], delay_s: float) -> None:
    """Write each packet to the other device `delay_s` after it was read. Packets beyond `QUEUE` are dropped."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    other = dict(zip(devices, devices[::-1], strict=True))
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(devices, (), (), timeout_s)[0]:
            packet = os.read(device, PACKET_BYTES)
            if len(waiting) < QUEUE:
                waiting.append((time.monotonic() + delay_s, other[device], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, packet = waiting.popleft()
            os.write(device, packet)


if __name__ == "__main__":
    pairs = list(zip(sys.argv[1:5:2], sys.argv[2:5:2], strict=True))
    first, second = [open_device(*pair) for pair in pairs]
    print("ready", flush=True)
    forward((first, second), float(sys.argv[5]))

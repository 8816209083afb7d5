"""A worker with `worker.device = "cuda"` on the emulated device: `python -m bench_gpu.pretend_worker`."""

from __future__ import annotations

from unittest import mock

from bench_gpu.pretend import pretend_cuda
from horologe_gpu_worker import __main__
from horologe_gpu_worker.repository import profile_cache

if __name__ == "__main__":
    with (
        pretend_cuda(),
        mock.patch.object(profile_cache, "load_driver"),
        mock.patch.object(profile_cache, "device_name", return_value="Pretend"),
    ):
        __main__.main()

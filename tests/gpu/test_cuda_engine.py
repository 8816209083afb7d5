"""The worker's code on a real CUDA device. Needs PyTorch and numpy; benchmarks/README.md has the command."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench_gpu.rig import Rig
from gpu_worker.cuda_cases import *  # noqa: F403 (its tests are run here)
from horologe_gpu_worker.runtimes.pytorch.cuda_engine import pin_memory
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import CudaError, device_name, load_driver
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_pages import CudaBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages, PagePool
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import tensor_at

pytestmark = pytest.mark.gpu
PAGE_BYTES = 16 << 20


@pytest.fixture(scope="module")
def rig() -> Any:
    return Rig(pretend=False, tiny=True)


@pytest.fixture
def pool() -> Any:
    torch.cuda.init()
    pool = PagePool(CudaBacking(load_driver(), 0, PAGE_BYTES), 4)
    pool.fill()
    yield pool
    torch.cuda.synchronize()
    pool.check()
    pool.close()


def test_the_driver_and_pytorch_mean_the_same_device() -> None:
    assert device_name(load_driver(), 0) == torch.cuda.get_device_properties(0).name


def test_pages_make_one_contiguous_tensor_at_an_address_that_stays(pool: PagePool) -> None:
    where, other = pool.reserve_range(3), pool.reserve_range(2)
    tensor = tensor_at(where.address, 3 * PAGE_BYTES, 0)  # while nothing is mapped there
    assert (tensor.device, tensor.dtype, tensor.data_ptr()) == (torch.device("cuda:0"), torch.uint8, where.address)
    pool.map_pages(where)
    content = torch.randint(0, 256, (3 * PAGE_BYTES,), dtype=torch.uint8)
    tensor.copy_(content)
    assert torch.equal(tensor.cpu(), content)
    torch.cuda.synchronize()
    pool.unmap_pages(where)
    pool.map_pages(other)
    pool.map_pages(where)
    tensor.copy_(content.flip(0))
    assert torch.equal(tensor.cpu(), content.flip(0))
    torch.cuda.synchronize()
    pool.unmap_pages(where)


def test_what_the_driver_refuses_has_its_name(pool: PagePool) -> None:
    with pytest.raises(CudaError, match=r"cuMemUnmap: CUDA error \d+: .+"):
        pool.backing.unmap_pages(12345, 1)


def test_a_full_device_is_out_of_pages_and_changes_nothing(pool: PagePool) -> None:
    free, _ = torch.cuda.mem_get_info(0)
    large = pool.reserve_range(free // PAGE_BYTES + 8)
    with pytest.raises(OutOfPages, match="no room for another page"):
        pool.map_pages(large)
    pool.check()
    small = pool.reserve_range(1)
    pool.map_pages(small)
    pool.unmap_pages(small)


def test_pinned_memory_is_let_go_with_its_array() -> None:

    for _ in range(3):  # the same addresses again: memory that is still pinned cannot be pinned twice
        memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
        pin_memory(memory)
        assert torch.from_numpy(memory).is_pinned()
        del memory

"""What models of PyTorch have in common: a range of addresses for good, and pages in it while they are loaded.

Imports nothing but PyTorch and the pages, so that benchmarks can use it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horologe_gpu_worker.runtimes.pytorch.paging.weight_tensors import tensor_at, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool
    from horologe_gpu_worker.runtimes.pytorch.program import Program


class Weights:
    """The weights of one model: views into its addresses, valid whenever `loaded`."""

    def __init__(self, program: Program, pool: PagePool, cuda: int | None = None) -> None:
        page_bytes = pool.backing.page_bytes
        self._pool = pool
        self._range = pool.range(-(-program.layout.size // page_bytes))
        self._retired = False
        self.loaded = False
        self.size = program.layout.size
        self.base = tensor_at(self._range.address, self._range.pages * page_bytes, cuda)
        self.blob = program.blob[: self.size]
        self.tensors: Sequence[Any] = views(self.base, program.layout)

    def map(self) -> None:
        """Have pages; what is in them is whatever was there before. Raises `OutOfPages`."""
        self._pool.map(self._range)
        self.loaded = True

    def unmap(self) -> None:
        """Give the pages back."""
        self._pool.unmap(self._range)
        self.loaded = False
        if self._retired:
            self._pool.release(self._range)

    def retire(self) -> None:
        """Give up the addresses, now or as soon as the pages are given back."""
        self._retired = True
        if not self.loaded:
            self._pool.release(self._range)

    def altered(self) -> bool:
        """Whether they differ from what is on disk."""
        return not torch.equal(self.base[: self.size].cpu(), self.blob)

    def hold(self, address: int) -> bool:
        """Whether the address is among the weights'."""
        begin = self._range.address
        return begin <= address < begin + self._range.pages * self._pool.backing.page_bytes

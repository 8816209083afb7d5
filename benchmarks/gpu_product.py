"""Benchmark of the whole server on a GPU: its own controller, worker and HTTP, with three kinds of models.

    python benchmarks/gpu_product.py --json product.json --markdown product.md    # five minutes on an H100
    python benchmarks/gpu_product.py --cpu                                        # on an emulated device

ResNet-50, a transformer of variable length and a Python model (PyTorch) share a worker. Each has 16 clients in a closed
loop (as in Clockwork, Fig. 5), at several SLOs, on shares of 10% to 100% of the GPU by MPS.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from bench_gpu.product import main  # here, because the processes that generate load import this file, too

    sys.exit(main())

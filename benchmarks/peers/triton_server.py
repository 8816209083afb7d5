"""Triton with its Python backend, through nvidia-pytriton, which includes a tritonserver."""

import os
import sys
import sysconfig

import numpy as np

LIBRARIES = sysconfig.get_config_var("LIBDIR") or ""
if LIBRARIES not in os.environ.get("LD_LIBRARY_PATH", ""):
    # The bundled server loads the shared library of this Python
    os.environ["LD_LIBRARY_PATH"] = f"{LIBRARIES}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    os.execv(sys.executable, [sys.executable, *sys.argv])

from pytriton.decorators import batch  # noqa: E402 - needs the environment set above
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor  # noqa: E402
from pytriton.triton import Triton, TritonConfig  # noqa: E402
from work import Work, options  # noqa: E402

arguments = options()


def worker():
    work = Work(arguments)

    @batch
    def infer(**inputs: np.ndarray):
        return {"y": work(inputs[arguments.input])}

    return infer


if __name__ == "__main__":
    shape = tuple(int(size) for size in arguments.shape.split(","))
    ports = {"http_port": arguments.port, "grpc_port": arguments.port + 1, "metrics_port": arguments.port + 2}
    with Triton(config=TritonConfig(http_address="127.0.0.1", log_verbose=0, **ports)) as triton:
        triton.bind(
            model_name="peer",
            infer_func=[worker() for _ in range(arguments.workers)],
            inputs=[Tensor(name=arguments.input, dtype=np.float32, shape=shape)],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(
                max_batch_size=arguments.max_batch,
                batcher=DynamicBatcher(max_queue_delay_microseconds=round(arguments.batch_wait_ms * 1e3)),
            ),
        )
        triton.serve()

"""Models of PyTorch. The modules of the CUDA device, of programs and of paging import neither msgspec nor pyzmq.

So benchmarks and tests/gpu can use them on a machine that has only PyTorch and numpy.
"""

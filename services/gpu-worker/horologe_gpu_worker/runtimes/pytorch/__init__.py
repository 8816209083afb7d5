"""Models of PyTorch. Only the runtimes import more of the project than what needs neither msgspec nor pyzmq, so that
benchmarks and tests/gpu can use the other modules beside a device.
"""

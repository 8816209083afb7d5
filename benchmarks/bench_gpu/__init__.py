"""The parts of benchmarks/gpu.py. They need PyTorch and numpy, and nothing else."""

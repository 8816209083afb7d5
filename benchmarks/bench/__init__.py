"""The parts of the benchmarks: what is sent, how it is sent, what came of it."""

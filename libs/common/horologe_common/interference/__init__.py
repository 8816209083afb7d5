"""Latency of workloads that share a GPU: prediction and coefficients (iGniter section 3.1), without their fits."""

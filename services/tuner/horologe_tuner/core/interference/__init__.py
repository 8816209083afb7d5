"""Interference between workloads that share a GPU: latency prediction and its coefficients (iGniter section 3.1)."""

"""Latencies of a pipeline under a plan and a trace of arrivals, by simulation (InferLine section 4.2)."""

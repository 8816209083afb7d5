"""Replicas that follow the traffic (InferLine section 5)."""

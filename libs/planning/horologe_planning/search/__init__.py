"""Low-frequency planning: the cheapest configuration that meets an SLO (InferLine section 4)."""

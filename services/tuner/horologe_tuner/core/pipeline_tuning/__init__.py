"""High-frequency tuning: numbers of workers of a plan's stages by traffic envelopes (InferLine section 5)."""

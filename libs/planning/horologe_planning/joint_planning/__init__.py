"""Plans of pipelines whose stages take shares of GPUs: InferLine's planner over iGniter's interference model."""

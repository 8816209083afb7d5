"""Scaling policies and planners that InferLine's planner and tuner are compared with."""

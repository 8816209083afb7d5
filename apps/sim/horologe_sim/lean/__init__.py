"""The controller's own core with lean workers and clients around it, for runs of hours and millions of requests."""

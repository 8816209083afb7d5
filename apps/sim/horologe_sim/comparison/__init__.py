"""Schedulers side by side on the same requests: a trace of a user, or the load of a scenario."""

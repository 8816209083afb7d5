"""Rehearsals: recent requests are played under each scheduler, and the controller uses the one that serves most."""

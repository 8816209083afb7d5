"""Shares of devices: carrying out a sharing plan, and standby workers that repair violations (iGniter section 4.2)."""

"""Shares of devices, and standby workers that repair violations of their stages (iGniter section 4.2)."""

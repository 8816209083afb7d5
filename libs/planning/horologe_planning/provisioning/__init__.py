"""Provisioning: workloads with rates and SLOs to shares of GPUs at the least cost (iGniter section 4.1)."""

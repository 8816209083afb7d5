"""Plans of pipelines and of shares of GPUs: what to run where, for a load and an SLO. Pure: no I/O, no clock."""

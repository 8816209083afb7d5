"""Plans: what to run where, for a load and an SLO. Pure: no I/O, no clock.

`search/` plans a pipeline on whole devices, `joint_planning/` on shares of devices, by the same search; `estimator/`
says whether queries are in time. `provisioning/` plans models that clients call by themselves on shares, by the
latencies that `interference/` predicts. All return `plan.Plan`.
"""

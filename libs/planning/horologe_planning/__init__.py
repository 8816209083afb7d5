"""Plans: what to run where, for a load and an SLO. Pure: no I/O, no clock.

How a plan of a pipeline is made, in three files:

1. `search/cheapest_first.py`: what costs least is tried first, and gets a device more if it is too slow
2. `search/whole_devices.py`: what is tried on whole devices. `joint_planning/joint_planner.py`: on shares of devices
3. `search/evaluation.py`: whether it is in time, as the simulation of `estimator/` says

`search/pipeline_planner.py` makes the plan of what was found. Models that clients call by themselves are planned by
`provisioning/provisioner.py`, on shares, by the latencies that `interference/` predicts. All return `plan.Plan`.
"""

"""Plans of pipelines whose stages take shares of GPUs: InferLine's planner over iGniter's interference model.

The pipeline `video-monitoring` at 150 queries per second within 150 ms, as the planner found for a sample of arrivals:

    whole devices   1 v100 (detect), 2 k80 (vehicles), 3 k80 (persons), 2 cpu (plates)              $5.798 per hour
    shares          1 v100 (detect 40%, persons 35%, vehicles 25%), 2 cpu (plates)                  $2.628 per hour
"""

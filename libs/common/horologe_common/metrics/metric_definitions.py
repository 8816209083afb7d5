"""Every metric by name."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`kind`: counter, gauge, histogram; untyped: Triton's names that break Prometheus' conventions."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


MODEL = ("model", "version")
PART = ("application", "model")
STAGE = ("pipeline", "stage")
GPU = ("gpu_uuid",)
CLOCK = ("worker", "incarnation")

METRICS: dict[str, Metric] = {
    "nv_inference_request_success": Metric("untyped", "Requests answered OK", MODEL),
    "nv_inference_request_failure": Metric("untyped", "Requests not answered OK, by status", (*MODEL, "reason")),
    "nv_inference_count": Metric("untyped", "Rows executed", MODEL),
    "nv_inference_exec_count": Metric("untyped", "Batches executed", MODEL),
    "nv_inference_request_duration_us": Metric("untyped", "Cumulative time from arrival to answer", MODEL),
    "nv_inference_queue_duration_us": Metric("untyped", "Cumulative time from arrival to execution", MODEL),
    "nv_inference_compute_infer_duration_us": Metric("untyped", "Cumulative execution time of batches", MODEL),
    "nv_inference_pending_request_count": Metric("untyped", "Requests waiting for execution", MODEL),
    "nv_cache_num_hits_per_model": Metric("untyped", "Prediction cache hits", MODEL),
    "nv_cache_num_misses_per_model": Metric("untyped", "Prediction cache misses", MODEL),
    "nv_gpu_utilization": Metric("gauge", "Part of the last sample period in which the GPU ran kernels, 0 to 1", GPU),
    "nv_gpu_memory_total_bytes": Metric("gauge", "Memory of the GPU", GPU),
    "nv_gpu_memory_used_bytes": Metric("gauge", "Memory of the GPU that all processes use", GPU),
    "nv_gpu_power_usage": Metric("gauge", "Power of the GPU in watts", GPU),
    "nv_gpu_power_limit": Metric("gauge", "Enforced power limit of the GPU in watts", GPU),
    "nv_energy_consumption": Metric("untyped", "Energy of the GPU in joules since its driver was loaded", GPU),
    "horologe_build_info": Metric(
        "gauge", "Always 1; the labels describe the process", ("service", "version", "python")
    ),
    "process_cpu_seconds_total": Metric("counter", "User and system CPU time of the process"),
    "process_resident_memory_bytes": Metric("gauge", "Resident memory of the process"),
    "process_start_time_seconds": Metric("gauge", "Start of the process in Unix time"),
    "process_open_fds": Metric("gauge", "Open file descriptors of the process"),
    "process_max_fds": Metric("gauge", "Limit of open file descriptors of the process"),
    "horologe_request_seconds": Metric("histogram", "Arrival to answer at the frontend", MODEL),
    "horologe_slack_seconds": Metric("histogram", "Time left until the deadline, for requests answered in time", MODEL),
    "horologe_queue_seconds_total": Metric("counter", "Time from arrival to execution of requests answered OK", MODEL),
    "horologe_streams_open": Metric("gauge", "Open streams", MODEL),
    "horologe_stream_first_item_seconds": Metric(
        "histogram", "Arrival of a stream at the selector to its first item", MODEL
    ),
    "horologe_stream_gap_seconds": Metric(
        "histogram", "Item of a stream, or room for the next one if that came later, to the next item", MODEL
    ),
    "horologe_admission_slack_seconds": Metric(
        "histogram", "Time left until the deadline when the controller receives a request"
    ),
    "horologe_application_requests_total": Metric(
        "counter", "Requests of an application, by final status", ("application", "status")
    ),
    "horologe_application_defaulted_total": Metric(
        "counter", "Requests with a row answered by the declared default", ("application",)
    ),
    "horologe_application_request_seconds": Metric("histogram", "Arrival to answer at the frontend", ("application",)),
    "horologe_key_requests_total": Metric(
        "counter", "Requests and calls with a key of the key file, by its name, also those that are refused", ("key",)
    ),
    "horologe_key_refused_total": Metric(
        "counter", "Requests and calls refused because a key has sent more than its rate", ("key",)
    ),
    "horologe_refused_total": Metric("counter", "Requests refused by the controller, by reason", (*MODEL, "reason")),
    "horologe_batch_rows": Metric("histogram", "Rows in a batch", MODEL),
    "horologe_exec_seconds_total": Metric("counter", "Execution time of batches", MODEL),
    "horologe_expected_exec_seconds_total": Metric("counter", "Predicted execution time of the same batches", MODEL),
    "horologe_prediction_error_seconds": Metric(
        "histogram", "Actual minus expected duration of an action", ("action", "side")
    ),
    "horologe_completion_error_seconds": Metric(
        "histogram", "Actual end of an action minus the end predicted when it was planned", ("action", "side")
    ),
    "horologe_start_error_seconds": Metric(
        "histogram", "EXEC begin minus the latest of: window start, end of the previous EXEC, arrival of the inputs"
    ),
    "horologe_lane_operations_total": Metric(
        "counter", "Finished operations: load, unload (on the load lane), input, exec, output", ("lane", "status")
    ),
    "horologe_lane_busy_seconds_total": Metric("counter", "Busy time of the lanes of all shares", ("lane",)),
    "horologe_lane_wait_seconds": Metric(
        "histogram", "Begin of an operation minus the later of: window start, time at which it was queued", ("lane",)
    ),
    "horologe_model_failures_total": Metric(
        "counter", "Failed operations of a model, by cause: error, crash, hang", (*MODEL, "cause")
    ),
    "horologe_actions_total": Metric("counter", "Finished actions", ("action", "status")),
    "horologe_device_slowness": Metric(
        "gauge", "Recent EXEC time divided by profiled time (median of ten)", ("worker", "share")
    ),
    "horologe_device_share_percent": Metric(
        "gauge",
        "Sum of the shares of a device that connected workers own, with standby workers",
        ("device", "type"),
    ),
    "horologe_model_dynamic": Metric(
        "gauge", "1 if batches are planned by distributions of execution times that depend on the input, else 0", MODEL
    ),
    "horologe_pages_free": Metric("gauge", "Free 16 MiB pages", ("worker", "share")),
    "horologe_pages_capacity": Metric("gauge", "All 16 MiB pages", ("worker", "share")),
    "horologe_model_resident_bytes": Metric("gauge", "Bytes of the pages of a model on all shares", MODEL),
    "horologe_model_resident_shares": Metric("gauge", "Shares on which a model is resident", MODEL),
    "horologe_oldest_request_seconds": Metric("gauge", "Age of the oldest queued request that has a deadline"),
    "horologe_workers": Metric(
        "gauge",
        "Connected workers, by state: ready, draining, unreachable. lost: disconnected without draining, and no other "
        "worker has connected since",
        ("state",),
    ),
    "horologe_workers_expected": Metric("gauge", "Setting controller.workers; 0 if the number is not fixed"),
    "horologe_clock_offset_seconds": Metric(
        "gauge", "Clock of a worker minus that of the controller. Between machines, only its changes matter", CLOCK
    ),
    "horologe_clock_error_seconds": Metric("gauge", "Largest possible error of this offset", CLOCK),
    "horologe_staged_bytes": Metric("gauge", "Bytes of inputs held for workers"),
    "horologe_profiler_samples_total": Metric(
        "counter", "Samples by fate: queued, not_needed (enough similar rows have run), dropped", (*MODEL, "fate")
    ),
    "horologe_profiler_runs_total": Metric("counter", "Samples run alone, by status", (*MODEL, "status")),
    "horologe_profiler_published_total": Metric("counter", "Distributions sent to the controller", MODEL),
    "horologe_profiler_fit_error": Metric(
        "gauge", "Median of |c0 + c1 k l - measured| / measured over recent batches of a model", MODEL
    ),
    "horologe_profiler_queued_samples": Metric("gauge", "Samples that wait for a run"),
    "horologe_tuner_decisions_total": Metric(
        "counter", "Changes of replicas, by pipeline", ("pipeline", "direction", "mode")
    ),
    "horologe_tuner_replicas": Metric("gauge", "Replicas that a plan has at present", ("pipeline", "stage")),
    "horologe_tuner_rate": Metric(
        "gauge", "Highest rate in queries per second of the last check, by window in seconds", ("pipeline", "window")
    ),
    "horologe_tuner_workers": Metric("gauge", "Workers, wanted and running", ("hardware", "state")),
    "horologe_tuner_switches_total": Metric(
        "counter", "Workloads of the sharing plan that switched to another share", ("workload", "reason", "mode")
    ),
    "horologe_tuner_share_percent": Metric(
        "gauge", "Percent of the device that serves a workload of the sharing plan", ("workload", "device")
    ),
    "horologe_tuner_beyond_slo": Metric(
        "gauge", "Part of a workload's requests in the last second that exceeded its SLO or were refused", ("workload",)
    ),
    "horologe_tuner_blind": Metric("gauge", "1 while the tuner sees no arrivals and changes nothing", ()),
    "horologe_tuner_scaler_errors_total": Metric("counter", "Calls of the scaler that failed", ()),
    "horologe_profiler_keys": Metric("gauge", "Models x applications x ranges of lengths that have measurements"),
    "horologe_pipeline_open": Metric("gauge", "Open queries of a pipeline", ("pipeline",)),
    "horologe_pipeline_open_limit": Metric(
        "gauge", "Limit of open queries of a pipeline, so that few are dropped behind their first stage", ("pipeline",)
    ),
    "horologe_pipeline_calls_total": Metric("counter", "Calls of a pipeline's driver with outputs", STAGE),
    "horologe_pipeline_drops_total": Metric("counter", "Calls of a pipeline's driver without outputs", STAGE),
    "horologe_pipeline_device_seconds_total": Metric(
        "counter",
        "Device time of a pipeline's finished calls, by result of the query: answered, failed",
        ("pipeline", "result"),
    ),
    "horologe_pipeline_driver_restarts_total": Metric(
        "counter", "Processes of a pipeline's driver that have ended", ("pipeline",)
    ),
    "horologe_application_model_answered_total": Metric("counter", "Predictions for an application", PART),
    "horologe_application_model_missing_total": Metric(
        "counter", "Predictions for an application that were not there in time", PART
    ),
    "horologe_application_model_agreed_total": Metric("counter", "Predictions equal to the application's answer", PART),
    "horologe_application_model_observations_total": Metric("counter", "Predictions with feedback", PART),
    "horologe_application_model_loss_total": Metric(
        "counter", "Sum of the losses of these predictions, each 0 to 1", PART
    ),
    "horologe_messages_dropped_total": Metric(
        "counter", "Messages dropped because their receiver has disconnected, restarted, or does not read"
    ),
    "horologe_invalid_messages_total": Metric(
        "counter",
        "Messages that a service has ignored, because a field is out of range or the sender may not send it, by type",
        ("message",),
    ),
    "horologe_clients_rejected_total": Metric(
        "counter", "Client connections closed by the server: another protocol, too many, silent, or not reading answers"
    ),
    "horologe_links_connected": Metric("gauge", "Links to other processes whose handshake is complete"),
    "horologe_links_made_total": Metric("counter", "Completed handshakes, by role of the peer", ("peer",)),
    "horologe_links_lost_total": Metric(
        "counter",
        "Lost links, by reason: closed, silent (no heartbeat), failed (the socket), refused, replaced (by a new one)",
        ("peer", "reason"),
    ),
    "horologe_links_refused_total": Metric("counter", "Refused handshakes and packets: name, version, keys"),
    "horologe_core_faults_total": Metric("counter", "Exceptions in a core, each with a log line"),
    "horologe_log_lost_bytes_total": Metric("counter", "Bytes of the log that its reader did not take, or the disk"),
}

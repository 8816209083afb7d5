"""Questions that settings answer, in the order of docs/settings.md, with the settings of each."""

QUESTIONS = {
    "What is served?": """
        worker.repository worker.watch worker.fetch_timeout_ns http.uploads selector.pipelines selector.pipeline_drop
        selector.losses selector.cache_bytes selector.cache_ttl_ns
    """,
    "Where does it listen, and what does it connect to?": """
        links.bind links.connect links.advertise frontend.clients http.host http.port grpc.enabled grpc.host grpc.port
        frontend.reuse_port metrics.bind
    """,
    "Who may use it?": """
        links.keys links.allow_open http.keys_file http.allow_open tls.certificate_file tls.private_key_file
        tls.client_ca_file frontend.client_management
        worker.model_user worker.model_environment selector.pipeline_user selector.pipeline_environment
    """,
    "What are instances called, and where do they keep files?": """
        frontend.name selector.name worker.name selector.store selector.state selector.redis worker.cache
        profiler.state tuner.state controller.state
    """,
    "Which device does a worker use, and how much memory?": """
        worker.device worker.device_id worker.hardware worker.shares worker.share_percent worker.share_mechanism
        worker.emulated_device worker.pages_bytes worker.host_bytes worker.io_cache_bytes worker.realtime worker.pin
        worker.exec_cpus
    """,
    "In which order do requests run?": """
        controller.scheduler controller.fairness controller.admission controller.margin_ns controller.in_flight
        controller.lookahead_ns controller.preload
    """,
    "How much may wait, and how large may it be?": """
        frontend.max_pending frontend.max_request_bytes frontend.staging_bytes controller.max_queued
        links.max_frame_bytes links.max_connections http.max_connections http.max_requests http.client_share
        http.held_limit_bytes http.body_limit_bytes http.json_limit_bytes http.refused_status selector.predictions
        selector.unsaved selector.contexts_memory selector.streams selector.pipeline_runs
        selector.pipeline_staging_bytes selector.pipeline_memory_bytes
    """,
    "How long may it take?": """
        frontend.best_effort_ns frontend.grace_ns frontend.default_lead_ns frontend.load_timeout_ns
        worker.load_timeout_ns selector.pipeline_step_ns http.body_timeout_ns http.idle_timeout_ns links.silence_ns
    """,
    "When is it ready, and how does it stop?": """
        controller.workers frontend.ready_wait_ns links.notice_ns links.drain_ns
    """,
    "How much is measured?": """
        frontend.sample_ns profiler.busy_share profiler.initial_time_ns profiler.first_wait_ns profiler.staging_bytes
    """,
    "How does a plan follow the traffic?": """
        tuner.scaler tuner.scaler_target tuner.scaler_names tuner.max_workers tuner.dry_run tuner.headroom tuner.demand
        tuner.settle_ns tuner.shadow_percent hardware.prices
    """,
    "What can an operator read?": """
        log.level log.json tracing.endpoint tracing.per_second tracing.own_per_second recorder.directory
        recorder.messages recorder.roles
    """,
}

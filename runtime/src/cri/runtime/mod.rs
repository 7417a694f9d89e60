//! RuntimeService: one file per RPC, named after it. Each translates, calls, translates.

pub mod container_stats;
pub mod container_status;
pub mod create_container;
pub mod exec_sync;
pub mod get_container_events;
pub mod list_container_stats;
pub mod list_containers;
pub mod list_metric_descriptors;
pub mod list_pod_sandbox;
pub mod list_pod_sandbox_metrics;
pub mod list_pod_sandbox_stats;
pub mod pod_sandbox_stats;
pub mod pod_sandbox_status;
pub mod remove_container;
pub mod remove_pod_sandbox;
pub mod reopen_container_log;
pub mod run_pod_sandbox;
pub mod runtime_config;
pub mod start_container;
pub mod status;
pub mod stop_container;
pub mod stop_pod_sandbox;
pub mod update_container_resources;
pub mod update_pod_sandbox_resources;
pub mod update_runtime_config;
pub mod version;

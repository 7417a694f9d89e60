//! RuntimeService: one file per RPC that reads or streams, named after it. Each translates, calls,
//! translates. RPCs that change pods and containers have their files in `pod/`.

pub mod attach;
pub mod container_stats;
pub mod container_status;
pub mod exec;
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
pub mod port_forward;
pub mod reopen_container_log;
pub mod runtime_config;
pub mod status;
pub mod update_runtime_config;
pub mod version;

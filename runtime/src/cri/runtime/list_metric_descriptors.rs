//! ListMetricDescriptors (CRI-157).

use proto_cri::v1 as cri;

use crate::stats::metrics;

pub fn list_metric_descriptors() -> cri::ListMetricDescriptorsResponse {
    cri::ListMetricDescriptorsResponse {
        descriptors: metrics::descriptors(),
    }
}

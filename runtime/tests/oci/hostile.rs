//! Messages with damaged bytes: a message that still decodes is applied or rejected, without a
//! panic, and a rejection changes nothing.

use cairn::oci::{apply_adjustment, apply_update};
use proptest::prelude::*;
use proto_cri::v1::ContainerConfig;
use proto_nri::ContainerAdjustment;

use crate::{
    nri_apply::{context, everything},
    support::Fixture,
};

/// Positions and values to overwrite in an encoded message.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
}

fn damaged(mut bytes: Vec<u8>, damage: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    for (place, value) in damage {
        let place = place.index(bytes.len());
        bytes[place] = *value;
    }
    bytes
}

/// The kubelet's container with a field of every kind.
fn config() -> ContainerConfig {
    let mut f = Fixture::default();
    f.config.mounts = vec![proto_cri::v1::Mount {
        host_path: "/shared/x".to_owned(),
        container_path: "/x/y".to_owned(),
        readonly: true,
        propagation: 1,
        mount_options: vec!["nodev".to_owned()],
        ..Default::default()
    }];
    f.config.envs = vec![proto_cri::v1::KeyValue {
        key: "A".to_owned(),
        value: b"b".to_vec(),
    }];
    f.config.stop_signal = 23;
    let context = f.context();
    context.run_as_user = Some(proto_cri::v1::Int64Value { value: 1000 });
    context.supplemental_groups = vec![5, 6];
    context.masked_paths = vec!["/proc/kcore".to_owned()];
    context.seccomp = Some(proto_cri::v1::SecurityProfile::default());
    context.capabilities = Some(proto_cri::v1::Capability {
        add_capabilities: vec!["NET_ADMIN".to_owned()],
        drop_capabilities: vec!["ALL".to_owned()],
        ..Default::default()
    });
    *f.resources() = proto_cri::v1::LinuxContainerResources {
        cpu_quota: 1000,
        cpu_shares: 2,
        memory_limit_in_bytes: 4096 << 20,
        cpuset_cpus: "0-3".to_owned(),
        unified: [("memory.high".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    f.config
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_adjustment_is_applied_whole_or_refused_whole(damage in damage()) {
        let bytes = damaged(prost13::Message::encode_to_vec(&everything()), &damage);
        if let Ok(adjust) = <ContainerAdjustment as prost13::Message>::decode(bytes.as_slice()) {
            let mut f = Fixture::default();
            f.host.resctrl = true;
            let before = f.spec().spec;
            let mut spec = before.clone();
            if apply_adjustment(&mut spec, &adjust, &context(&f)).is_err() {
                prop_assert_eq!(spec, before);
            }
        }
    }

    #[test]
    fn a_damaged_configuration_is_a_spec_or_a_refusal(damage in damage()) {
        let bytes = damaged(prost::Message::encode_to_vec(&config()), &damage);
        if let Ok(config) = <ContainerConfig as prost::Message>::decode(bytes.as_slice()) {
            let f = Fixture { config, ..Fixture::default() };
            if let Ok(built) = f.build() {
                prop_assert!(built.spec.process().as_ref().is_some_and(|p| p.args().is_some()));
            }
        }
    }

    #[test]
    fn a_damaged_update_changes_everything_it_names_or_nothing(damage in damage()) {
        let asked = config().linux.and_then(|l| l.resources).expect("resources");
        let bytes = damaged(prost::Message::encode_to_vec(&asked), &damage);
        if let Ok(asked) = <proto_cri::v1::LinuxContainerResources as prost::Message>::decode(bytes.as_slice()) {
            let f = Fixture::default();
            let before = f.spec().spec;
            let mut spec = before.clone();
            if apply_update(&mut spec, &asked, &context(&f)).is_err() {
                prop_assert_eq!(spec, before);
            }
        }
    }
}

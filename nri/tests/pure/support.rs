//! Helpers of the tests in this directory: plugins by id, a container to adjust, a merge in one
//! call.

use nri::{
    PluginId,
    merge::{CreateMerge, MergeError, MergedCreate},
    owners::Owner,
};
use proto_nri::{
    Container, ContainerAdjustment, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Field, Hook, LinuxContainer, LinuxDevice, LinuxNamespace,
    LinuxNetDevice, Mount, PodSandbox,
};

pub(crate) fn plugin(id: &str) -> PluginId {
    id.parse().expect("a valid plugin id")
}

/// A container with one removable entry of each kind: key `/old`, `OLD`, `old`.
pub(crate) fn container() -> Container {
    Container {
        id: "ctr".into(),
        name: "main".into(),
        annotations: [("old".into(), "original".into())].into(),
        args: vec!["sh".into(), "-c".into()],
        env: vec!["OLD=original".into(), "ODD".into()],
        mounts: vec![mount("/old", "original")],
        linux: Some(LinuxContainer {
            devices: vec![device("/dev/old", 1)],
            namespaces: vec![namespace("network", "/original"), namespace("pid", "")],
            sysctl: [("old".into(), "original".into())].into(),
            net_devices: [("old".into(), net_device("original"))].into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn mount(destination: &str, source: &str) -> Mount {
    Mount {
        destination: destination.into(),
        source: source.into(),
        ..Default::default()
    }
}

pub(crate) fn device(path: &str, minor: i64) -> LinuxDevice {
    LinuxDevice {
        path: path.into(),
        r#type: "c".into(),
        minor,
        ..Default::default()
    }
}

pub(crate) fn namespace(kind: &str, path: &str) -> LinuxNamespace {
    LinuxNamespace {
        r#type: kind.into(),
        path: path.into(),
    }
}

pub(crate) fn net_device(name: &str) -> LinuxNetDevice {
    LinuxNetDevice { name: name.into() }
}

pub(crate) fn hook(path: &str) -> Hook {
    Hook {
        path: path.into(),
        ..Default::default()
    }
}

/// Builds an adjustment by a closure on an empty one.
pub(crate) fn adjust(
    write: impl FnOnce(&mut ContainerAdjustment) -> &mut ContainerAdjustment,
) -> CreateContainerResponse {
    let mut adjust = ContainerAdjustment::default();
    write(&mut adjust);
    CreateContainerResponse {
        adjust: Some(adjust),
        ..Default::default()
    }
}

pub(crate) fn updates(update: Vec<ContainerUpdate>) -> CreateContainerResponse {
    CreateContainerResponse {
        update,
        ..Default::default()
    }
}

/// The result of a merge: the container that a next plugin would see, and the merged answer.
#[derive(Debug)]
pub(crate) struct Merged {
    pub seen: Container,
    pub answer: MergedCreate,
}

impl Merged {
    pub(crate) fn owner(&self, field: Field) -> Option<String> {
        let owners = self.answer.owners.container("ctr")?;
        owners.owner(field).map(Owner::to_string)
    }

    pub(crate) fn owner_of(&self, field: Field, key: &str) -> Option<String> {
        let owners = self.answer.owners.container("ctr")?;
        owners.owner_of(field, key).map(Owner::to_string)
    }

    pub(crate) fn reply(&self) -> &ContainerAdjustment {
        &self.answer.adjust
    }

    pub(crate) fn linux(&self) -> &proto_nri::LinuxContainerAdjustment {
        self.reply().linux.as_ref().expect("always present")
    }

    pub(crate) fn seen_linux(&self) -> &LinuxContainer {
        self.seen.linux.as_ref().expect("always present")
    }
}

/// Merges the answers of plugins `10-a`, `20-b`, `30-c`, … in this order.
pub(crate) fn merge(answers: Vec<CreateContainerResponse>) -> Result<Merged, MergeError> {
    let ids = ["10-a", "20-b", "30-c", "40-d"];
    merge_as(ids.into_iter().zip(answers))
}

pub(crate) fn merge_as<'a>(
    answers: impl IntoIterator<Item = (&'a str, CreateContainerResponse)>,
) -> Result<Merged, MergeError> {
    let mut merge = CreateMerge::new(CreateContainerRequest {
        pod: Some(PodSandbox::default()),
        container: Some(container()),
    });
    for (id, answer) in answers {
        merge.apply(&plugin(id), answer)?;
    }
    let seen = merge.request().container.clone().expect("always present");
    Ok(Merged {
        seen,
        answer: merge.finish(),
    })
}

/// Asserts that plugin `later` conflicts with `earlier` over this field and key.
#[track_caller]
pub(crate) fn assert_conflict(
    result: Result<Merged, MergeError>,
    later: &str,
    earlier: &str,
    field: Field,
    key: Option<&str>,
) {
    match result {
        Err(MergeError::Conflict(conflict)) => {
            let reported = conflict.to_string();
            let path = nri::place::path(field, key);
            for part in [later, earlier, &path] {
                assert!(
                    reported.contains(part),
                    "{reported:?} does not name {part:?}"
                );
            }
            assert_eq!(conflict.later, plugin(later));
            assert_eq!(conflict.earlier, plugin(earlier));
            assert_eq!(conflict.field, field);
            assert_eq!(conflict.key.as_deref(), key);
        }
        other => panic!("expected a conflict over {field:?}, got {other:?}"),
    }
}

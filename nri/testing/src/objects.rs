//! Short builders of pods and containers. Unset fields are those of a plain runtime; the runtime
//! that adds them sets the ids.

use std::collections::BTreeMap;

use nri::proto::{Container, LinuxContainer, LinuxPodSandbox, LinuxResources, Mount, PodSandbox};

/// A pod of this name in the namespace `default`.
pub fn pod(name: impl Into<String>) -> PodBuilder {
    let name = name.into();
    PodBuilder(PodSandbox {
        uid: format!("uid-of-{name}"),
        name,
        namespace: "default".into(),
        ips: vec!["10.0.0.7".into()],
        linux: Some(LinuxPodSandbox::default()),
        ..Default::default()
    })
}

/// A container of this name, which runs `sleep`.
pub fn container(name: impl Into<String>) -> ContainerBuilder {
    ContainerBuilder(Container {
        name: name.into(),
        args: vec!["sleep".into(), "inf".into()],
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".into()],
        mounts: vec![Mount {
            destination: "/proc".into(),
            r#type: "proc".into(),
            source: "proc".into(),
            options: ["nosuid", "noexec", "nodev"].map(String::from).to_vec(),
        }],
        linux: Some(LinuxContainer::default()),
        ..Default::default()
    })
}

/// Builder of a pod.
#[derive(Debug, Clone)]
pub struct PodBuilder(PodSandbox);

impl From<PodBuilder> for PodSandbox {
    fn from(built: PodBuilder) -> Self {
        built.0
    }
}

impl PodBuilder {
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.namespace = namespace.into();
        self
    }

    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.annotations.insert(key.into(), value.into());
        self
    }

    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.labels.insert(key.into(), value.into());
        self
    }

    pub fn runtime_handler(mut self, handler: impl Into<String>) -> Self {
        self.0.runtime_handler = handler.into();
        self
    }

    /// Changes any field of the message.
    pub fn with(mut self, change: impl FnOnce(&mut PodSandbox)) -> Self {
        change(&mut self.0);
        self
    }
}

/// Builder of a container.
#[derive(Debug, Clone)]
pub struct ContainerBuilder(Container);

impl From<ContainerBuilder> for Container {
    fn from(built: ContainerBuilder) -> Self {
        built.0
    }
}

impl ContainerBuilder {
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.0.args = args.into_iter().map(Into::into).collect();
        self
    }

    pub fn env(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let entry = format!("{}={}", name.as_ref(), value.as_ref());
        self.0.env.push(entry);
        self
    }

    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.annotations.insert(key.into(), value.into());
        self
    }

    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.labels.insert(key.into(), value.into());
        self
    }

    /// A bind mount of a path of the host.
    pub fn bind(mut self, source: impl Into<String>, destination: impl Into<String>) -> Self {
        self.0.mounts.push(Mount {
            destination: destination.into(),
            r#type: "bind".into(),
            source: source.into(),
            options: vec!["rbind".into()],
        });
        self
    }

    pub fn resources(mut self, resources: LinuxResources) -> Self {
        self.0.linux.get_or_insert_default().resources = Some(resources);
        self
    }

    /// Changes any field of the message.
    pub fn with(mut self, change: impl FnOnce(&mut Container)) -> Self {
        change(&mut self.0);
        self
    }
}

/// Adds entries of `more` whose keys are missing.
pub(super) fn add_missing(map: &mut BTreeMap<String, String>, more: &[(&str, &str)]) {
    for (key, value) in more {
        map.entry((*key).to_owned())
            .or_insert_with(|| (*value).to_owned());
    }
}

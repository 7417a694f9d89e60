//! Texts with terminal control sequences or line breaks, in each text field of a CRI request: none
//! appears unchanged in an error, in the daemon's log or in a table.

use cairn_tests::{
    Daemon, cri,
    output::shown,
    pod::{container_namespaces, pod_security, security},
};
use tonic::Status;

/// Clears the screen, ends the line, returns to its start, writes from right to left.
const EVIL: &str = "x\u{1b}[2J\nforged\r\u{9b}31m\u{202e}y";

/// Returns the first character that controls a terminal, or changes the direction or position of
/// adjacent text.
fn hidden(text: &str) -> Option<char> {
    let moves = |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    text.chars().find(|c| c.is_control() || moves(*c))
}

/// The errors of calls, by the field with the text.
#[derive(Default)]
struct Errors(Vec<(String, Status)>);

impl Errors {
    fn of<T>(&mut self, field: &str, answer: Result<T, Status>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push((field.to_owned(), error));
                None
            }
        }
    }
}

type SpoilPod = (&'static str, fn(&mut cri::PodSandboxConfig, String));
type SpoilContainer = (&'static str, fn(&mut cri::ContainerConfig, String));

fn linux(config: &mut cri::PodSandboxConfig) -> &mut cri::LinuxPodSandboxConfig {
    config.linux.as_mut().expect("set by pod_config")
}

fn metadata(config: &mut cri::PodSandboxConfig) -> &mut cri::PodSandboxMetadata {
    config.metadata.as_mut().expect("set by pod_config")
}

fn resources(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    let linux = config.linux.as_mut().expect("set by container_config");
    linux.resources.get_or_insert_default()
}

fn local(text: String) -> Option<cri::SecurityProfile> {
    Some(cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::Localhost.into(),
        localhost_ref: text,
    })
}

fn selinux(level: String) -> Option<cri::SeLinuxOption> {
    Some(cri::SeLinuxOption {
        level,
        ..Default::default()
    })
}

fn mount(host_path: &str, container_path: &str) -> cri::Mount {
    cri::Mount {
        host_path: host_path.to_owned(),
        container_path: container_path.to_owned(),
        ..Default::default()
    }
}

const PODS: &[SpoilPod] = &[
    ("metadata.name", |c, t| metadata(c).name = t),
    ("metadata.uid", |c, t| metadata(c).uid = t),
    ("metadata.namespace", |c, t| metadata(c).namespace = t),
    ("hostname", |c, t| c.hostname = t),
    ("log_directory", |c, t| c.log_directory = t),
    ("log_directory below", |c, t| {
        c.log_directory += &format!("/{t}")
    }),
    ("labels", |c, t| drop(c.labels.insert(t.clone(), t))),
    ("annotations", |c, t| {
        drop(c.annotations.insert(t.clone(), t))
    }),
    ("dns_config.servers", |c, t| {
        c.dns_config.get_or_insert_default().servers = vec![t];
    }),
    ("dns_config.searches", |c, t| {
        c.dns_config.get_or_insert_default().searches = vec![t];
    }),
    ("dns_config.options", |c, t| {
        c.dns_config.get_or_insert_default().options = vec![t];
    }),
    ("port_mappings.host_ip", |c, t| {
        c.port_mappings = vec![cri::PortMapping {
            host_ip: t,
            host_port: 8080,
            container_port: 80,
            ..Default::default()
        }];
    }),
    ("linux.cgroup_parent", |c, t| linux(c).cgroup_parent = t),
    ("linux.cgroup_parent below", |c, t| {
        linux(c).cgroup_parent += &format!("/{t}")
    }),
    ("linux.sysctls name", |c, t| {
        linux(c).sysctls.insert(t, "1".to_owned());
    }),
    ("linux.sysctls value", |c, t| {
        linux(c).sysctls.insert("net.ipv4.ip_forward".to_owned(), t);
    }),
    ("selinux_options", |c, t| {
        pod_security(c).selinux_options = selinux(t)
    }),
    ("seccomp", |c, t| pod_security(c).seccomp = local(t)),
    ("apparmor", |c, t| pod_security(c).apparmor = local(t)),
    ("target_id", |c, t| {
        let options = pod_security(c).namespace_options.as_mut();
        let options = options.expect("set by pod_config");
        options.pid = cri::NamespaceMode::Target.into();
        options.target_id = t;
    }),
];

const CONTAINERS: &[SpoilContainer] = &[
    ("metadata.name", |c, t| {
        c.metadata.get_or_insert_default().name = t
    }),
    ("image.image", |c, t| {
        c.image.get_or_insert_default().image = t
    }),
    ("image.runtime_handler", |c, t| {
        c.image.get_or_insert_default().runtime_handler = t;
    }),
    ("command", |c, t| c.command = vec![t]),
    ("args", |c, t| c.args = vec![t]),
    ("working_dir", |c, t| c.working_dir = t),
    ("working_dir below", |c, t| {
        c.working_dir = format!("/bin/busybox/{t}")
    }),
    ("envs.key", |c, key| {
        c.envs = vec![cri::KeyValue {
            key,
            value: String::new(),
        }];
    }),
    ("mounts.host_path", |c, t| {
        c.mounts = vec![mount(&format!("/{t}"), "/m")]
    }),
    ("mounts.container_path", |c, t| {
        c.mounts = vec![mount("/none", &t)]
    }),
    ("mounts.container_path below", |c, t| {
        c.mounts = vec![mount("/dev/null", &format!("/bin/busybox/{t}"))];
    }),
    ("mounts.image", |c, t| {
        let image = cri::ImageSpec {
            image: t,
            ..Default::default()
        };
        c.mounts = vec![cri::Mount {
            image: Some(image),
            ..mount("", "/m")
        }];
    }),
    ("mounts.image at", |c, t| {
        let image = c.image.clone();
        c.mounts = vec![cri::Mount {
            image,
            ..mount("", &format!("/{t}"))
        }];
    }),
    ("devices.host_path", |c, t| {
        c.devices = vec![cri::Device {
            host_path: format!("/dev/{t}"),
            container_path: format!("/dev/{t}"),
            permissions: "r".to_owned(),
        }];
    }),
    ("devices.permissions", |c, t| {
        c.devices = vec![cri::Device {
            host_path: "/dev/null".to_owned(),
            container_path: "/dev/x".to_owned(),
            permissions: t,
        }];
    }),
    ("CDI_devices", |c, name| {
        c.cdi_devices = vec![cri::CdiDevice { name }]
    }),
    ("CDI_devices of a kind", |c, t| {
        let name = format!("vendor.com/class={t}");
        c.cdi_devices = vec![cri::CdiDevice { name }];
    }),
    ("labels", |c, t| drop(c.labels.insert(t.clone(), t))),
    ("annotations", |c, t| {
        drop(c.annotations.insert(t.clone(), t))
    }),
    ("log_path", |c, t| c.log_path = t),
    ("log_path up", |c, t| c.log_path = format!("../{t}")),
    ("resources.cpuset_cpus", |c, t| resources(c).cpuset_cpus = t),
    ("resources.cpuset_mems", |c, t| resources(c).cpuset_mems = t),
    ("resources.hugepage_limits", |c, page_size| {
        resources(c).hugepage_limits = vec![cri::HugepageLimit {
            page_size,
            limit: 1,
        }];
    }),
    ("resources.unified", |c, t| {
        drop(resources(c).unified.insert(t.clone(), t))
    }),
    ("capabilities.add_capabilities", |c, t| {
        security(c)
            .capabilities
            .get_or_insert_default()
            .add_capabilities = vec![t];
    }),
    ("capabilities.drop_capabilities", |c, t| {
        security(c)
            .capabilities
            .get_or_insert_default()
            .drop_capabilities = vec![t];
    }),
    ("run_as_username", |c, t| security(c).run_as_username = t),
    ("selinux_options", |c, t| {
        security(c).selinux_options = selinux(t)
    }),
    ("seccomp", |c, t| security(c).seccomp = local(t)),
    ("seccomp at", |c, t| {
        security(c).seccomp = local(format!("/{t}"))
    }),
    ("apparmor", |c, t| security(c).apparmor = local(t)),
    ("masked_paths", |c, t| security(c).masked_paths = vec![t]),
    ("readonly_paths", |c, t| {
        security(c).readonly_paths = vec![t]
    }),
    ("target_id", |c, t| {
        container_namespaces(c).pid = cri::NamespaceMode::Target.into();
        container_namespaces(c).target_id = t;
    }),
];

/// Makes the calls that contain only the id of an object.
#[expect(clippy::needless_update, reason = "some requests have other fields")]
async fn by_id(daemon: &Daemon, id: String, errors: &mut Errors) {
    let cri = daemon.cri();
    let (mut runtime, mut images) = (cri.client.runtime.clone(), cri.client.image.clone());
    macro_rules! call {
        ($client:ident.$method:ident($request:ident { $($field:ident: $value:expr),* })) => {
            let request = cri::$request { $($field: $value,)* ..Default::default() };
            errors.of(stringify!($method), $client.$method(request).await);
        };
    }
    let pod_sandbox_id = || id.clone();
    let container_id = || id.clone();
    let image = || {
        Some(cri::ImageSpec {
            image: id.clone(),
            ..Default::default()
        })
    };
    call!(runtime.stop_pod_sandbox(StopPodSandboxRequest {
        pod_sandbox_id: pod_sandbox_id()
    }));
    call!(runtime.remove_pod_sandbox(RemovePodSandboxRequest {
        pod_sandbox_id: pod_sandbox_id()
    }));
    call!(runtime.pod_sandbox_status(PodSandboxStatusRequest {
        pod_sandbox_id: pod_sandbox_id()
    }));
    call!(runtime.pod_sandbox_stats(PodSandboxStatsRequest {
        pod_sandbox_id: pod_sandbox_id()
    }));
    call!(runtime.port_forward(PortForwardRequest {
        pod_sandbox_id: pod_sandbox_id(),
        port: vec![1]
    }));
    call!(runtime.create_container(CreateContainerRequest {
        pod_sandbox_id: pod_sandbox_id()
    }));
    call!(runtime.start_container(StartContainerRequest {
        container_id: container_id()
    }));
    call!(runtime.stop_container(StopContainerRequest {
        container_id: container_id()
    }));
    call!(runtime.remove_container(RemoveContainerRequest {
        container_id: container_id()
    }));
    call!(runtime.container_status(ContainerStatusRequest {
        container_id: container_id()
    }));
    call!(runtime.container_stats(ContainerStatsRequest {
        container_id: container_id()
    }));
    call!(runtime.reopen_container_log(ReopenContainerLogRequest {
        container_id: container_id()
    }));
    call!(
        runtime.update_container_resources(UpdateContainerResourcesRequest {
            container_id: container_id(),
            linux: Some(cri::LinuxContainerResources::default())
        })
    );
    call!(runtime.exec_sync(ExecSyncRequest {
        container_id: container_id(),
        cmd: vec![id.clone()]
    }));
    call!(runtime.exec(ExecRequest {
        container_id: container_id(),
        cmd: vec![id.clone()],
        stdout: true
    }));
    call!(runtime.attach(AttachRequest {
        container_id: container_id(),
        stdout: true
    }));
    call!(runtime.checkpoint_container(CheckpointContainerRequest {
        container_id: container_id(),
        location: id.clone()
    }));
    call!(runtime.update_runtime_config(UpdateRuntimeConfigRequest {
        runtime_config: Some(cri::RuntimeConfig {
            network_config: Some(cri::NetworkConfig {
                pod_cidr: id.clone()
            })
        })
    }));
    call!(images.pull_image(PullImageRequest { image: image() }));
    call!(images.image_status(ImageStatusRequest { image: image() }));
    call!(images.remove_image(RemoveImageRequest { image: image() }));
}

#[tokio::test]
async fn no_text_of_a_client_comes_out_of_an_error_a_log_or_a_table_as_it_went_in() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut errors = Errors::default();
    by_id(&daemon, EVIL.to_owned(), &mut errors).await;
    by_id(&daemon, format!("127.0.0.1:9/{EVIL}"), &mut errors).await;
    for (field, spoil) in PODS {
        let mut config = cri.pod_config("texts");
        spoil(&mut config, EVIL.to_owned());
        let run = cri.try_pod(config).await;
        if let Some(pod) = errors.of(&format!("RunPodSandbox: {field}"), run) {
            let container = pod.try_create(cri.container_config("c", &["true"])).await;
            if let Some(container) = errors.of(field, container) {
                errors.of(field, container.start().await);
            }
            pod.end().await;
        }
    }
    let handler = cri::RunPodSandboxRequest {
        config: Some(cri.pod_config("texts")),
        runtime_handler: EVIL.to_owned(),
    };
    let mut runtime = cri.client.runtime.clone();
    errors.of("runtime_handler", runtime.run_pod_sandbox(handler).await);
    let pod = cri.pod("texts").await;
    for (field, spoil) in CONTAINERS {
        let mut config = cri.container_config("c", &["true"]);
        spoil(&mut config, EVIL.to_owned());
        let created = pod.try_create(config).await;
        if let Some(container) = errors.of(&format!("CreateContainer: {field}"), created) {
            errors.of(&format!("StartContainer: {field}"), container.start().await);
            container.remove().await.expect("RemoveContainer");
        }
    }
    let sleeper = pod.sleeper("sleeper").await;
    errors.of("ExecSync: cmd", sleeper.try_exec(&[EVIL], 5).await);
    let rest = errors.0.iter().filter_map(|(field, error)| {
        let found = hidden(error.message())?;
        Some(format!("{field}: {found:?} in {:?}", error.message()))
    });
    let rest: Vec<_> = rest.collect();
    let fields: Vec<_> = errors.0.iter().map(|(field, _)| field.as_str()).collect();
    println!("{} errors: {fields:?}", fields.len());
    assert!(fields.len() >= 50, "{} errors: {fields:?}", fields.len());
    let mut raw = rest;
    let log = daemon.log();
    raw.extend(log.lines().filter_map(|line| {
        let forged = line.starts_with("forged").then_some('\n');
        let found = hidden(line).or(forged)?;
        Some(format!("the log: {found:?} in {line:?}"))
    }));
    for args in [
        &["timeline"][..],
        &["ps", "--all"],
        &["status"],
        &["explain", &sleeper.id],
    ] {
        let output = daemon.cairn(args).await;
        let shown = shown(&output);
        raw.extend(shown.lines().filter_map(|line| {
            let forged = line.starts_with("forged").then_some('\n');
            let found = hidden(line).or(forged)?;
            Some(format!("cairn {args:?}: {found:?} in {line:?}"))
        }));
    }
    assert!(raw.is_empty(), "{}", raw.join("\n"));
    pod.end().await;
}

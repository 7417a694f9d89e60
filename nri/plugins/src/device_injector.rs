//! Adds devices, CDI devices, mounts, and more to containers by annotations of their pods.
//!
//! | annotation | value |
//! |---|---|
//! | `devices.noderesource.dev` | list of {path, type, major, minor, file_mode, uid, gid} |
//! | `mounts.noderesource.dev` | list of {source, destination, type, options} |
//! | `cdi-devices.noderesource.dev` | list of names |
//! | `io-priority.noderesource.dev` | {class, priority} |
//! | `scheduling-policy.noderesource.dev` | {policy, nice, priority, flags, runtime, deadline, period} |
//! | `network-devices.noderesource.dev` | list of {hostIf, name} |
//! | `sysctl.noderesource.dev` | map |
//! | `memory-policy.noderesource.dev` | {mode, nodes, flags} |
//!
//! Each for one container (`/container.<name>`), the complete pod (`/pod`) or without a suffix; all
//! but `sysctl` also with the older domain `nri.io`. A value that does not parse fails the
//! creation.

use std::collections::BTreeMap;

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::{Adjust, Strip},
    proto::*,
};
use serde::{Deserialize, Deserializer, de};

use crate::{
    annotations,
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Device {
    path: String,
    r#type: String,
    major: i64,
    minor: i64,
    #[serde(deserialize_with = "file_mode")]
    file_mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IoPriority {
    class: String,
    priority: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Scheduler {
    policy: String,
    nice: i32,
    priority: i32,
    flags: Vec<String>,
    runtime: u64,
    deadline: u64,
    period: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NetDevice {
    host_if: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MemoryPolicy {
    mode: String,
    nodes: String,
    flags: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub struct DeviceInjector {
    log: Log,
}

impl Sample for DeviceInjector {
    const NAME: &'static str = "device-injector";
    const USAGE: Usage = [
        "Injects devices, CDI devices, mounts, I/O priority, scheduler, network devices, sysctls and memory policy from annotations of pods.",
        "device-injector -idx 10  # or launched as 10-device-injector",
        r#""annotations": {"devices.noderesource.dev/pod": "[{path: /dev/zero2, type: c, major: 1, minor: 5, file_mode: 0666}]", "sysctl.noderesource.dev": "{net.core.somaxconn: '256'}"}"#,
    ];
    const FLAGS: &'static [Flag] = &[];

    fn new(_: &Args, log: Log) -> Result<Self, String> {
        Ok(Self { log })
    }
}

impl Plugin for DeviceInjector {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        let asked = Asked {
            pod: &pod,
            container: &container.name,
        };
        let mut adjust = ContainerAdjustment::default();
        asked.devices(&mut adjust)?;
        asked.mounts(&mut adjust)?;
        if let Some(class) = asked.io_priority(&mut adjust)? {
            let container = display(&pod, &container);
            self.log.info(format_args!(
                "{container}: I/O class {class:?} is not known"
            ));
        }
        asked.scheduler(&mut adjust)?;
        asked.net_devices(&mut adjust)?;
        asked.memory_policy(&mut adjust)?;
        let adjust = adjust.strip();
        if let Some(adjust) = &adjust {
            let container = display(&pod, &container);
            self.log
                .debug(format_args!("{container}: {}", crate::dump::value(adjust)));
        }
        Ok(adjust.into())
    }
}

/// The annotations of the pod for one of its containers.
struct Asked<'a> {
    pod: &'a PodSandbox,
    container: &'a str,
}

impl Asked<'_> {
    /// The value of `<what>.noderesource.dev`, or of the same under the older domain.
    fn value<T: de::DeserializeOwned>(&self, what: &str) -> Result<Option<T>, String> {
        let keys = [format!("{what}.noderesource.dev"), format!("{what}.nri.io")];
        self.first(&[&keys[0], &keys[1]])
    }

    fn first<T: de::DeserializeOwned>(&self, keys: &[&str]) -> Result<Option<T>, String> {
        annotations::for_container(self.pod, keys, self.container)
            .map(annotations::read)
            .transpose()
    }

    fn list<T: de::DeserializeOwned>(&self, what: &str) -> Result<Vec<T>, String> {
        self.value(what).map(Option::unwrap_or_default)
    }

    fn devices(&self, adjust: &mut ContainerAdjustment) -> Result<(), String> {
        for device in self.list::<Device>("devices")? {
            adjust.add_device(LinuxDevice {
                path: device.path,
                r#type: device.r#type,
                major: device.major,
                minor: device.minor,
                file_mode: nonzero(device.file_mode).map(|value| OptionalFileMode { value }),
                uid: nonzero(device.uid).map(|value| OptionalUInt32 { value }),
                gid: nonzero(device.gid).map(|value| OptionalUInt32 { value }),
            });
        }
        for name in self.list::<String>("cdi-devices")? {
            adjust.add_cdi_device(name);
        }
        Ok(())
    }

    fn mounts(&self, adjust: &mut ContainerAdjustment) -> Result<(), String> {
        for mount in self.list("mounts")? {
            adjust.add_mount(mount);
        }
        Ok(())
    }

    /// Returns an unknown class, which is left out with a warning.
    fn io_priority(&self, adjust: &mut ContainerAdjustment) -> Result<Option<String>, String> {
        let Some(value) = self.value::<IoPriority>("io-priority")? else {
            return Ok(None);
        };
        let Some(class) = IoPrioClass::from_str_name(&value.class) else {
            return Ok(Some(value.class));
        };
        adjust.io_priority(LinuxIoPriority {
            class: class.into(),
            priority: value.priority,
        });
        Ok(None)
    }

    fn scheduler(&self, adjust: &mut ContainerAdjustment) -> Result<(), String> {
        let Some(value) = self.value::<Scheduler>("scheduling-policy")? else {
            return Ok(());
        };
        let policy = LinuxSchedulerPolicy::from_str_name(&value.policy)
            .ok_or_else(|| format!("scheduling policy {:?} is not known", value.policy))?;
        adjust.scheduler(LinuxScheduler {
            policy: policy.into(),
            nice: value.nice,
            priority: value.priority,
            flags: numbers(&value.flags, "scheduling flag", |name| {
                LinuxSchedulerFlag::from_str_name(name).map(i32::from)
            })?,
            runtime: value.runtime,
            deadline: value.deadline,
            period: value.period,
        });
        Ok(())
    }

    fn net_devices(&self, adjust: &mut ContainerAdjustment) -> Result<(), String> {
        for device in self.list::<NetDevice>("network-devices")? {
            adjust.add_net_device(device.host_if, device.name);
        }
        let sysctl = self.first::<BTreeMap<String, String>>(&["sysctl.noderesource.dev"])?;
        for (key, value) in sysctl.unwrap_or_default() {
            adjust.add_sysctl(key, value);
        }
        Ok(())
    }

    fn memory_policy(&self, adjust: &mut ContainerAdjustment) -> Result<(), String> {
        let Some(value) = self.value::<MemoryPolicy>("memory-policy")? else {
            return Ok(());
        };
        let mode = MpolMode::from_str_name(&value.mode)
            .ok_or_else(|| format!("memory policy mode {:?} is not known", value.mode))?;
        adjust.memory_policy(LinuxMemoryPolicy {
            mode: mode.into(),
            nodes: value.nodes,
            flags: numbers(&value.flags, "memory policy flag", |name| {
                MpolFlag::from_str_name(name).map(i32::from)
            })?,
        });
        Ok(())
    }
}

fn numbers(
    names: &[String],
    what: &str,
    number: impl Fn(&str) -> Option<i32>,
) -> Result<Vec<i32>, String> {
    let known = |name: &String| number(name).ok_or_else(|| format!("{what} {name:?} is not known"));
    names.iter().map(known).collect()
}

fn nonzero(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

/// A mode is a number, or an octal number as text.
fn file_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Mode {
        Number(u32),
        Text(String),
    }
    match Mode::deserialize(deserializer)? {
        Mode::Number(mode) => Ok(mode),
        Mode::Text(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8)
            .map_err(|_| de::Error::custom(format!("file mode {text:?} is not a number"))),
    }
}

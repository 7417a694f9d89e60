//! CDI files of this host (CRI-227): read anew for each container that asks for a device, so that a
//! vendor's file counts at once and nothing is kept for those who ask for none. What the files mean
//! is decided in `oci/cdi`.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use oci_spec::runtime::Spec;

use crate::oci::{
    BindSource, CdiFile, CdiInjector, CdiRegistry, CdiResolver, HostDevice, HostFacts, HostView,
    SpecError,
    cdi::{DIRECTORIES, MAX_FILE},
};

/// More files than this in one directory are not read.
const MAX_FILES: usize = 256;

/// Resolves devices from the files of the host.
pub struct HostCdi<'a> {
    directories: Vec<PathBuf>,
    host: &'a HostFacts,
    view: &'a dyn HostView,
}

impl<'a> HostCdi<'a> {
    /// With the directories that every runtime looks at.
    pub fn new(host: &'a HostFacts, view: &'a dyn HostView) -> Self {
        Self {
            directories: DIRECTORIES.map(PathBuf::from).to_vec(),
            host,
            view,
        }
    }
}

impl CdiResolver for HostCdi<'_> {
    fn inject(&self, names: &[String], spec: &mut Spec) -> Result<(), SpecError> {
        let (registry, warnings) = CdiRegistry::load(&read(&self.directories));
        for warning in warnings {
            tracing::warn!(%warning, "cdi");
        }
        let injector = CdiInjector {
            registry: &registry,
            host: self.host,
            view: self.view,
        };
        injector.inject(names, spec)
    }
}

/// A view of the host that also resolves CDI devices.
pub struct WithCdi<'a> {
    pub cdi: HostCdi<'a>,
}

impl HostView for WithCdi<'_> {
    fn bind_source(&self, host_path: &str) -> Option<BindSource> {
        self.cdi.view.bind_source(host_path)
    }

    fn devices(&self, host_path: &str) -> Vec<HostDevice> {
        self.cdi.view.devices(host_path)
    }

    fn has_apparmor_profile(&self, name: &str) -> bool {
        self.cdi.view.has_apparmor_profile(name)
    }

    fn knows_selinux_label(&self, label: &str) -> bool {
        self.cdi.view.knows_selinux_label(label)
    }

    fn in_rootfs(&self, container_path: &str) -> String {
        self.cdi.view.in_rootfs(container_path)
    }

    fn cdi(&self) -> Option<&dyn CdiResolver> {
        Some(&self.cdi)
    }
}

/// The files of all directories, each directory in order of names; one that is not there has none.
fn read(directories: &[PathBuf]) -> Vec<CdiFile> {
    let mut files = Vec::new();
    for (priority, directory) in directories.iter().enumerate() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_cdi(path))
            .collect();
        paths.sort();
        paths.truncate(MAX_FILES);
        for path in paths {
            match read_bounded(&path) {
                Ok(text) => files.push(CdiFile {
                    priority,
                    path: path.display().to_string(),
                    text,
                }),
                Err(error) => tracing::warn!(path = %path.display(), %error, "cdi file"),
            }
        }
    }
    files
}

fn is_cdi(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str());
    matches!(ending, Some("json" | "yaml" | "yml"))
}

/// One byte more than allowed tells `oci/cdi` that it is too long.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?
        .take(MAX_FILE as u64 + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoView;

    impl HostView for NoView {
        fn bind_source(&self, _: &str) -> Option<BindSource> {
            None
        }

        fn devices(&self, _: &str) -> Vec<HostDevice> {
            Vec::new()
        }
    }

    fn file(value: &str) -> String {
        format!(
            r#"{{"cdiVersion":"1.0.0","kind":"v.com/c","devices":[{{"name":"d","containerEdits":{{"env":["FROM={value}"]}}}}]}}"#
        )
    }

    #[test]
    fn files_are_read_at_each_use_and_the_later_directory_wins() {
        let (low, high) = (
            tempfile::tempdir().expect("dir"),
            tempfile::tempdir().expect("dir"),
        );
        let host = HostFacts::default();
        let cdi = HostCdi {
            directories: vec![
                low.path().to_owned(),
                high.path().to_owned(),
                "/nowhere".into(),
            ],
            host: &host,
            view: &NoView,
        };
        let view = WithCdi { cdi };
        let env = || {
            let mut spec = Spec::default();
            let names = ["v.com/c=d".to_owned()];
            view.cdi().expect("a resolver").inject(&names, &mut spec)?;
            Ok::<_, SpecError>(
                spec.process()
                    .as_ref()
                    .and_then(|p| p.env().clone())
                    .unwrap_or_default(),
            )
        };
        assert!(env().is_err());
        fs::write(low.path().join("a.json"), file("low")).expect("written");
        assert!(env().expect("resolved").contains(&"FROM=low".to_owned()));
        fs::write(high.path().join("b.yaml"), file("high")).expect("written");
        fs::write(high.path().join("b.txt"), "not CDI").expect("written");
        fs::create_dir(high.path().join("dir.json")).expect("made");
        fs::write(high.path().join("binary.json"), b"\xff").expect("written");
        assert!(env().expect("resolved").contains(&"FROM=high".to_owned()));
    }
}

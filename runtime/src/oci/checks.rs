//! Properties of the parsers of `/etc/passwd`, `/etc/group` and CDI files that hold for any text.

use super::cdi::{CdiFile, CdiRegistry};
use super::user::{UserRequest, resolve};

/// Resolves users by name and by number. `data`: both files, separated by a NUL.
pub fn accounts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (passwd, group) = text.split_once('\0').unwrap_or((&text, ""));
    for image_user in ["", "root", "app", "1000", "app:staff", "7:8"] {
        let resolved = resolve(&UserRequest {
            image_user,
            passwd: Some(passwd),
            group: Some(group),
            ..UserRequest::default()
        });
        if let Ok(user) = resolved {
            let groups = &user.supplemental_groups;
            assert!(groups.contains(&user.gid), "{user:?}");
            assert!(groups.is_sorted_by(|a, b| a < b), "{user:?}");
        }
    }
}

/// Loads a CDI file; the first byte selects JSON or YAML.
pub fn cdi_file(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let extension = if kind & 1 == 0 { "json" } else { "yaml" };
    let file = CdiFile {
        priority: 0,
        path: format!("file.{extension}"),
        text: String::from_utf8_lossy(text).into_owned(),
    };
    let (registry, faults) = CdiRegistry::load(&[file]);
    assert!(faults.iter().all(|fault| !fault.is_empty()));
    for name in registry.names() {
        let (kind, device) = name.split_once('=').expect("a qualified name");
        assert!(kind.contains('/') && !device.is_empty(), "{name}");
    }
}

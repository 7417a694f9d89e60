//! Writes a plan to a cgroup, all or nothing: if the kernel refuses a value, the values that were
//! already written are restored (CRI-137).

use super::error::{Error, Result};
use super::group::Cgroup;
use super::host::{Mode, Place};
use super::plan::{Change, View, plan};
use super::{devices, group, io};
use oci_spec::runtime::LinuxResources;
use std::path::PathBuf;

impl Cgroup {
    /// Applies the limits and device rules of a container that is being created.
    ///
    /// Device rules come last, when nothing after them can fail. `devices: None` keeps the cgroup's
    /// rules; with a list, v2 denies everything that is not listed.
    ///
    /// # Errors
    /// See [`Error`]; the limits are then as before. After `DeviceFilter` the container must not
    /// start: it could make device nodes of the host.
    pub fn apply(&self, resources: &LinuxResources) -> Result<()> {
        let written = self.write_limits(resources)?;
        match resources.devices() {
            Some(rules) => devices::apply(self, rules).inspect_err(|_| {
                self.put_back(&written);
            }),
            None => Ok(()),
        }
    }

    /// Writes the plan; returns the former values in order of writing. Ignores device rules. May
    /// block while the kernel reclaims memory to reach a lowered limit.
    pub(super) fn write_limits(&self, resources: &LinuxResources) -> Result<Vec<Change>> {
        let changes = plan(self, resources)?;
        let mut undo: Vec<Change> = Vec::with_capacity(changes.len());
        for change in changes {
            let former = self.write_one(&change).map_err(|mut error| {
                let failed = self.put_back(&undo);
                if let Error::Write { restore, .. } = &mut error {
                    *restore = failed;
                }
                error
            })?;
            undo.extend(former);
        }
        Ok(undo)
    }

    /// Writes one value if it differs; returns the change that undoes it.
    fn write_one(&self, change: &Change) -> Result<Option<Change>> {
        let file = self.file(change)?;
        let mut former = io::read_if_there(&file)?;
        if former.is_none() && self.delegate_for(&change.controller)? {
            former = io::read_if_there(&file)?;
        }
        if former.as_deref() == Some(change.value.as_str()) {
            return Ok(None);
        }
        io::write(&file, &change.value).map_err(|source| self.refused(change, source))?;
        let value = former.and_then(|former| former_value(change, &former));
        Ok(value.map(|value| Change {
            value,
            ..change.clone()
        }))
    }

    fn file(&self, change: &Change) -> Result<PathBuf> {
        let dir = self.dir_of(&change.controller);
        let dir = dir.ok_or_else(|| self.lacks_controller(change))?;
        Ok(dir.join(&change.file))
    }

    /// A missing file means that the controller is not delegated to this cgroup.
    fn refused(&self, change: &Change, source: std::io::Error) -> Error {
        if source.kind() == std::io::ErrorKind::NotFound {
            return self.lacks_controller(change);
        }
        Error::Write {
            cgroup: self.path.to_string(),
            file: change.file.clone(),
            value: change.value.clone(),
            source,
            restore: None,
        }
    }

    fn lacks_controller(&self, change: &Change) -> Error {
        Error::no_controller(self.path.as_str(), &change.file, &change.controller)
    }

    /// Hybrid: delegates a controller of the unified tree when a limit first needs it.
    fn delegate_for(&self, controller: &str) -> Result<bool> {
        let (Mode::Hybrid, Some(Place::V2(_))) = (self.host.mode(), self.host.place(controller))
        else {
            return Ok(false);
        };
        let Some(unified) = self.host.unified() else {
            return Ok(false);
        };
        group::delegate(unified, &self.path, &[controller.to_owned()])?;
        Ok(true)
    }

    /// Restores in reverse order and continues after a failure. Returns the first failure as a
    /// suffix for the error text of its cause.
    pub(super) fn put_back(&self, undo: &[Change]) -> Option<String> {
        let mut failed = None;
        for change in undo.iter().rev() {
            let Ok(file) = self.file(change) else {
                continue;
            };
            if let Err(e) = io::write(&file, &change.value) {
                failed.get_or_insert_with(|| format!("; restoring {} failed: {e}", change.file));
            }
        }
        failed
    }
}

/// The value that restores `change.file` to `former`; `None` if nothing must be written. Files that
/// read as a table take one line at a time.
fn former_value(change: &Change, former: &str) -> Option<String> {
    match change.file.as_str() {
        "io.max" => {
            let (device, _) = change.value.split_once(' ')?;
            let same = |line: &&str| line.split(' ').next() == Some(device);
            let old = former.lines().find(same).map(str::to_owned);
            let none = || format!("{device} rbps=max wbps=max riops=max wiops=max");
            Some(old.unwrap_or_else(none))
        }
        "memory.oom_control" => {
            let line = former.lines().next()?;
            Some(line.strip_prefix("oom_kill_disable ")?.to_owned())
        }
        _ => Some(former.to_owned()),
    }
}

impl View for Cgroup {
    fn name(&self) -> &str {
        self.path.as_str()
    }

    fn place(&self, controller: &str) -> Option<Place<'_>> {
        self.host.place(controller)
    }

    fn current(&self, controller: &str, file: &str) -> Result<Option<String>> {
        match self.dir_of(controller) {
            Some(dir) => io::read_if_there(&dir.join(file)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(file: &str, value: &str) -> Change {
        Change {
            controller: "x".to_owned(),
            file: file.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn a_table_is_restored_line_by_line() {
        let io_max = change("io.max", "8:0 rbps=5");
        let former = "7:0 rbps=1 wbps=max\n8:0 rbps=9 wbps=max";
        let line = former_value(&io_max, former);
        assert_eq!(line.as_deref(), Some("8:0 rbps=9 wbps=max"));
        let reset = former_value(&io_max, "");
        let all_max = "8:0 rbps=max wbps=max riops=max wiops=max";
        assert_eq!(reset.as_deref(), Some(all_max));
    }

    #[test]
    fn the_oom_switch_is_restored_from_its_first_line() {
        let switch = change("memory.oom_control", "1");
        let former = "oom_kill_disable 0\nunder_oom 0\noom_kill 3";
        assert_eq!(former_value(&switch, former).as_deref(), Some("0"));
    }
}

//! Plugins' adjustments that can fail a start although the creation accepted them: mounts,
//! arguments and the memory limit. The error of the start then names the plugin.

use nri::owners::ContainerOwners;
use oci_spec::runtime::Spec;
use proto_nri::{ContainerAdjustment, Field};

use super::error::{Error, Result};
use crate::oci::{HostView, limits};

#[derive(Clone)]
pub(super) struct AdjustedStart {
    mounts: Vec<AdjustedMount>,
    /// The program, if plugins set the arguments.
    program: Option<String>,
    args_set_by: String,
    /// Empty if no plugin set the limit.
    memory_set_by: String,
}

#[derive(Clone)]
struct AdjustedMount {
    destination: String,
    /// Of a bind mount.
    source: Option<String>,
    set_by: String,
}

impl AdjustedStart {
    pub(super) fn of(adjustment: &ContainerAdjustment, owners: &ContainerOwners) -> Self {
        let setters = |field, key| owners.setters(field, key).join(", ");
        let mounts = adjustment.mounts.iter().map(|mount| {
            let mut options = mount.options.iter();
            let bind = mount.r#type == "bind" || options.any(|o| o == "bind" || o == "rbind");
            AdjustedMount {
                destination: mount.destination.clone(),
                source: bind.then(|| mount.source.clone()),
                set_by: setters(Field::Mounts, Some(&mount.destination)),
            }
        });
        let args_set_by = setters(Field::Args, None);
        let mut args = adjustment.args.iter();
        // An empty first argument is a marker.
        let program = args.find(|arg| !arg.is_empty() && !args_set_by.is_empty());
        Self {
            program: program.cloned(),
            mounts: mounts.filter(|mount| !mount.set_by.is_empty()).collect(),
            args_set_by,
            memory_set_by: setters(Field::MemLimit, None),
        }
    }

    /// Checks that sources of binds still exist.
    ///
    /// # Errors
    /// Names the mount and its plugin.
    pub(super) fn check(&self, view: &dyn HostView) -> Result<()> {
        for mount in &self.mounts {
            if let Some(source) = &mount.source
                && view.bind_source(source).is_none()
            {
                let (to, by) = (&mount.destination, &mount.set_by);
                return Err(Error::failed(format!(
                    "mount {to} (set by {by}): source {source:?} is not there any more"
                )));
            }
        }
        Ok(())
    }

    /// The memory limit of a spec, for an error.
    pub(super) fn memory_limit(&self, spec: &Spec) -> String {
        let memory = limits::current(spec).and_then(|limits| limits.memory().as_ref());
        match (
            memory.and_then(|memory| memory.limit()),
            self.memory_set_by.as_str(),
        ) {
            (None, _) => String::new(),
            (Some(limit), "") => format!(" (its limit is {limit} bytes)"),
            (Some(limit), by) => format!(" (its limit is {limit} bytes, set by {by})"),
        }
    }

    /// Adds the plugin to an error of the create helper, which names a mount by its destination,
    /// and a program.
    pub(super) fn name_in(&self, text: &str) -> String {
        for AdjustedMount {
            destination,
            set_by,
            ..
        } in &self.mounts
        {
            let mount = format!("mount {destination}: ");
            if let Some((before, after)) = text.split_once(&mount) {
                return format!("{before}mount {destination} (set by {set_by}): {after}");
            }
        }
        let exec = self
            .program
            .as_ref()
            .map(|program| format!("exec {program:?}: "));
        match exec.and_then(|exec| Some((text.split_once(&exec)?, exec))) {
            Some(((before, after), exec)) => {
                format!("{before}args (set by {}): {exec}{after}", self.args_set_by)
            }
            None => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nri::PluginId;
    use proto_nri::Mount;

    use super::*;

    fn adjusted() -> AdjustedStart {
        let mut owners = ContainerOwners::default();
        let plugin = |index: &str, name: &str| PluginId::new(index, name).expect("an id");
        for (id, destination) in [("30", "/x"), ("10", "/y")] {
            let claimed = owners.claim_key(&plugin(id, "p"), Field::Mounts, destination);
            claimed.expect("free");
        }
        owners.clear_key(&plugin("20", "p"), Field::Mounts, "/z");
        owners.claim(&plugin("20", "p"), Field::Args).expect("free");
        let mounts = ["/x", "/y", "/z"].map(|to| Mount {
            destination: to.to_owned(),
            r#type: "bind".to_owned(),
            source: "/".to_owned(),
            ..Mount::default()
        });
        let adjustment = ContainerAdjustment {
            mounts: mounts.into(),
            args: vec![String::new(), "/nosuch".to_owned()],
            ..ContainerAdjustment::default()
        };
        AdjustedStart::of(&adjustment, &owners)
    }

    #[test]
    fn a_mount_that_fails_at_the_start_is_reported_with_its_plugin() {
        for (text, expected) in [
            (
                "create: mount /y: bind /src: gone",
                "create: mount /y (set by 10-p): bind /src: gone",
            ),
            ("mount /yy: gone", "mount /yy: gone"),
            ("mount /z: gone", "mount /z: gone"),
        ] {
            assert_eq!(adjusted().name_in(text), expected);
        }
    }

    #[test]
    fn a_program_that_is_missing_at_the_start_is_reported_with_the_plugin_that_set_it() {
        let text = "create: exec \"/nosuch\": no such file";
        let expected = "create: args (set by 20-p): exec \"/nosuch\": no such file";
        assert_eq!(adjusted().name_in(text), expected);
        let other = "exec \"/other\": no such file";
        assert_eq!(adjusted().name_in(other), other);
        let none = AdjustedStart::of(&ContainerAdjustment::default(), &ContainerOwners::default());
        assert_eq!(none.name_in(text), text);
    }
}

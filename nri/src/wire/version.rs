//! The names on the wire; v1alpha1 with dedicated calls or with `StateChange`; and the NRI version
//! of a runtime.
//!
//! ```text
//!   Untried ──first dedicated call answered UNIMPLEMENTED──► StateChange   (for ever)
//!      └──────any other answer─────────────────────────────► Dedicated     (for ever)
//! ```

use parking_lot::Mutex;
use proto_nri::Event;

#[cfg(feature = "stub")]
use crate::mask::EVENTS;
use crate::{
    wire::event::has_state_change,
    wire::rpc::{CallError, Code},
};

/// The release of containerd/nri that this library follows in protocol and behaviour.
/// `tests/interop` tests it against that module.
pub const NRI_VERSION: &str = "v0.12.5";

/// The service that plugins serve (NRI-130).
pub const PLUGIN_API: &str = "nri.pkg.api.v1alpha1.Plugin";

/// The service that plugins call.
pub const RUNTIME_API: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The methods that plugins call.
pub(crate) const RUNTIME_METHODS: [&str; 2] = ["RegisterPlugin", "UpdateContainers"];

/// The methods that plugins serve.
#[cfg(feature = "stub")]
pub(crate) fn plugin_methods() -> Vec<&'static str> {
    let controls = ["Configure", "Synchronize", "Shutdown", "StateChange"];
    let events = EVENTS.map(|(_, name)| name);
    controls.into_iter().chain(events).collect()
}

/// Form in which a plugin takes the nine plain events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Not called yet; the first call decides.
    Untried,
    /// One call per event.
    Dedicated,
    /// `StateChange` for all nine.
    StateChange,
}

/// The style of one plugin. Only `peer.rs` changes it, and only once.
#[derive(Debug)]
pub(crate) struct StyleCell(Mutex<Style>);

impl StyleCell {
    pub(crate) fn new(style: Style) -> Self {
        Self(Mutex::new(style))
    }

    pub(crate) fn get(&self) -> Style {
        *self.0.lock()
    }

    /// Learns from the answer to a dedicated call. True: send the same event as `StateChange`.
    /// Timeouts and lost connections are ignored (NRI-330, NRI-332).
    pub(crate) fn learn<T>(&self, event: Event, answer: &Result<T, CallError>) -> bool {
        if self.get() != Style::Untried || !has_state_change(event) {
            return false;
        }
        let old = match answer {
            Err(CallError::Status(s)) => s.is(Code::Unimplemented) || rust_default(s),
            Err(CallError::TimedOut(_) | CallError::Lost(_) | CallError::TooLong { .. }) => {
                return false;
            }
            _ => false,
        };
        *self.0.lock() = if old {
            Style::StateChange
        } else {
            Style::Dedicated
        };
        old
    }
}

/// The answer of methods that ttrpc-rust generated without an implementation (NRI-141).
fn rust_default(status: &crate::wire::rpc::Status) -> bool {
    status.is(Code::NotFound) && status.message.ends_with("is not supported")
}

/// First release with each NRI version, per runtime, ascending (appendix C).
const CONTAINERD: &[([u32; 3], &str)] = &[
    ([1, 7, 0], "v0.3.0"),
    ([1, 7, 7], "v0.4.0"),
    ([1, 7, 14], "v0.6.0"),
    ([1, 7, 16], "v0.6.1"),
    ([1, 7, 26], "v0.8.0"),
    ([2, 2, 0], "v0.10.0"),
    ([2, 2, 1], "v0.11.0"),
];
const CRIO: &[([u32; 3], &str)] = &[
    ([1, 26, 0], "v0.2.0"),
    ([1, 26, 2], "v0.3.0"),
    ([1, 26, 4], "v0.3.1-0.20230504231226-94185418e253"),
    ([1, 27, 0], "v0.3.0"),
    ([1, 27, 1], "v0.3.1-0.20230504231226-94185418e253"),
    ([1, 29, 0], "v0.5.0"),
    ([1, 29, 2], "v0.6.0"),
    ([1, 31, 0], "v0.6.1"),
    ([1, 32, 0], "v0.9.0"),
    ([1, 33, 0], "v0.9.1-0.20250219030224-e597e7849f24"),
    ([1, 34, 0], "v0.10.0"),
    ([1, 35, 0], "v0.11.0"),
];

/// The NRI version of a runtime, as reported or else by its own version, with or without a leading
/// `v` (NRI-340, NRI-341). `None` if unknown.
pub(crate) fn runtime_nri_version(declared: &str, runtime: &str, version: &str) -> Option<String> {
    if !matches!(declared, "" | "(devel)" | "0.0.0-unknown" | "unknown") {
        return Some(declared.to_owned());
    }
    let table = match runtime {
        "containerd" => CONTAINERD,
        "cri-o" => CRIO,
        _ => return None,
    };
    let (version, before_release) = release(version)?;
    let reached = |first: [u32; 3]| first < version || first == version && !before_release;
    let entry = table.iter().rev().find(|(first, _)| reached(*first));
    entry.map(|(_, nri)| (*nri).to_owned())
}

/// Major, minor and patch, missing ones as 0; and whether it is a pre-release, such as `-rc.1`,
/// which sorts below it. `+unknown` is ignored, and so is `-5-gabcdef.m`, by which git counts
/// commits after a tag.
fn release(version: &str) -> Option<([u32; 3], bool)> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split('+').next()?;
    let tag = without_commits(version);
    let (core, before_release) = match tag.split_once('-') {
        Some((core, _)) => (core, true),
        None => (tag, false),
    };
    let mut numbers = core.split('.');
    let mut triple = [0; 3];
    for slot in &mut triple {
        match numbers.next() {
            Some(n) => *slot = n.parse().ok()?,
            None => break,
        }
    }
    Some((triple, before_release))
}

/// Without git's `-N-gSHA` or `-N-gSHA.m`.
fn without_commits(version: &str) -> &str {
    let described = || {
        let (rest, sha) = version.rsplit_once('-')?;
        let sha = sha.strip_prefix('g')?;
        let sha = sha.strip_suffix(".m").unwrap_or(sha);
        let (tag, count) = rest.rsplit_once('-')?;
        let hex = !sha.is_empty() && sha.chars().all(|c| c.is_ascii_hexdigit());
        let counts = !count.is_empty() && count.chars().all(|c| c.is_ascii_digit());
        (hex && counts).then_some(tag)
    };
    described().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rpc::Status;

    fn status(code: Code, text: &str) -> Result<(), CallError> {
        Err(CallError::Status(Status::new(code, text)))
    }

    #[test]
    fn only_the_first_dedicated_call_decides_the_style() {
        let cell = StyleCell::new(Style::Untried);
        assert!(!cell.learn(Event::RunPodSandbox, &Ok(())));
        assert_eq!(cell.get(), Style::Dedicated);
        assert!(!cell.learn(Event::StopPodSandbox, &status(Code::Unimplemented, "later")));
        assert_eq!(cell.get(), Style::Dedicated);
    }

    #[test]
    fn unimplemented_makes_a_plugin_old_and_other_errors_do_not() {
        let old = StyleCell::new(Style::Untried);
        assert!(old.learn(Event::StartContainer, &status(Code::Unimplemented, "x")));
        assert_eq!(old.get(), Style::StateChange);

        let rust = StyleCell::new(Style::Untried);
        let text = "/nri.pkg.api.v1alpha1.Plugin/StartContainer is not supported";
        assert!(rust.learn(Event::StartContainer, &status(Code::NotFound, text)));

        let veto = StyleCell::new(Style::Untried);
        assert!(!veto.learn(Event::StartContainer, &status(Code::Unknown, "no")));
        assert_eq!(veto.get(), Style::Dedicated);

        let hung = StyleCell::new(Style::Untried);
        let late: Result<(), _> = Err(CallError::TimedOut(std::time::Duration::ZERO));
        assert!(!hung.learn(Event::StartContainer, &late));
        assert_eq!(hung.get(), Style::Untried);
    }

    #[test]
    fn an_event_without_state_change_decides_nothing() {
        let cell = StyleCell::new(Style::Untried);
        assert!(!cell.learn(Event::CreateContainer, &status(Code::Unimplemented, "x")));
        assert_eq!(cell.get(), Style::Untried);
    }

    #[test]
    fn the_nri_version_is_inferred_with_and_without_v() {
        let infer = |runtime, version| runtime_nri_version("", runtime, version);
        assert_eq!(infer("containerd", "v1.7.13").as_deref(), Some("v0.4.0"));
        assert_eq!(infer("containerd", "1.7.13").as_deref(), Some("v0.4.0"));
        assert_eq!(
            infer("containerd", "2.4.0-beta+unknown").as_deref(),
            Some("v0.11.0")
        );
        assert_eq!(
            infer("containerd", "v2.1.3-12-gabcdef0.m").as_deref(),
            Some("v0.8.0")
        );
        assert_eq!(infer("cri-o", "1.37.0").as_deref(), Some("v0.11.0"));
        assert_eq!(infer("cri-o", "1.34").as_deref(), Some("v0.10.0"));
        assert_eq!(
            infer("containerd", "2.2.1-rc.0").as_deref(),
            Some("v0.10.0"),
            "a pre-release comes before its release"
        );
        assert_eq!(
            infer("containerd", "v2.2.1-rc.0-3-gabcdef0").as_deref(),
            Some("v0.10.0")
        );
        assert_eq!(
            infer("containerd", "v2.2.1-3-gabcdef0.m").as_deref(),
            Some("v0.11.0")
        );
        assert_eq!(infer("containerd", "1.7.0-beta.1"), None);
        assert_eq!(infer("containerd", "1.6.0"), None);
        assert_eq!(infer("podman", "5.0.0"), None);
        assert_eq!(
            runtime_nri_version("v0.9.0", "containerd", "1.7.0").as_deref(),
            Some("v0.9.0")
        );
        assert_eq!(
            runtime_nri_version("(devel)", "containerd", "1.7.0").as_deref(),
            Some("v0.3.0")
        );
    }
}

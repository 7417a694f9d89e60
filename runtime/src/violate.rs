//! The rules of CONTRACT.md that `cairn serve --violate NAME` breaks, one at a time, in a build with the feature
//! `fault`: so that `nri-contract` is seen to notice. Each name is asked for at one place, here or in the crate `nri`.

pub use nri::violate::is;

/// One broken rule.
#[cfg(feature = "fault")]
pub struct Violation {
    pub name: &'static str,
    /// The guarantee in CONTRACT.md.
    pub breaks: &'static str,
    /// What happens instead.
    pub instead: &'static str,
}

#[cfg(feature = "fault")]
const fn v(name: &'static str, breaks: &'static str, instead: &'static str) -> Violation {
    Violation {
        name,
        breaks,
        instead,
    }
}

/// All there are, in the order of the guarantees.
#[cfg(feature = "fault")]
#[rustfmt::skip]
pub const ALL: &[Violation] = &[
    v("run-without-cgroup", "C-01.1", "C-01's message names no cgroup parent"),
    v("run-without-namespaces", "C-01.2", "C-01's message names no namespace"),
    v("run-drops-addresses", "C-01.13", "addresses that plugins give a pod are thrown away"),
    v("run-without-ips", "C-01.3", "C-01's message names no address of the pod"),
    v("run-with-wrong-pid", "C-01.4", "C-01's message has another pid than that of the pause process, or one where there is none"),
    v("run-listed-early", "C-01.5", "ListPodSandbox shows a sandbox while plugins are in C-01"),
    v("run-status-early", "C-01.5", "PodSandboxStatus finds a sandbox while plugins are in C-01"),
    v("run-veto-ignored", "C-01.9", "a plugin's error at C-01 is only logged: the pod runs"),
    v("run-veto-nameless", "C-01.9", "the error of a vetoed RunPodSandbox says neither plugin nor event nor reason"),
    v("run-veto-without-stop", "C-01.9", "after a veto at C-01 only C-03 is sent, not C-02"),
    v("run-veto-without-remove", "C-01.9", "after a veto at C-01 only C-02 is sent, not C-03"),
    v("run-veto-keeps-namespaces", "C-01.9", "after a veto at C-01 the namespaces stay pinned"),
    v("veto-asks-on", "C-01.9", "plugins behind one that vetoed are asked too; the call fails in the end"),
    v("run-undo-after-teardown", "C-01.11", "after a veto at C-01, C-02 and C-03 are sent when the namespaces are gone"),
    v("run-undo-in-reverse", "C-01.11", "after a veto at C-01, C-03 is sent before C-02"),
    v("stop-before-containers", "C-02.1", "StopPodSandbox sends C-02 before its containers are stopped"),
    v("stop-after-network", "C-02.2", "StopPodSandbox sends C-02 after the network was taken down"),
    v("stop-twice", "C-02.6", "every StopPodSandbox sends C-02, also of a pod that is stopped"),
    v("stop-error-fails-the-call", "C-02.8", "a plugin's error at C-02 fails StopPodSandbox"),
    v("stop-error-hides", "C-02.8", "after a plugin's error at C-02 the plugins behind it are not told"),
    v("teardown-stops-at-timeout", "C-02.8", "after a time-out at a teardown event the plugins behind are not told"),
    v("resumed-stop-tells-again", "C-02.10", "a stop that failed at a later step sends C-02 again when it resumes"),
    v("remove-before-containers", "C-03.1", "RemovePodSandbox sends C-03 before the pod's containers are removed"),
    v("remove-without-stop", "C-03.2", "RemovePodSandbox of a running pod stops it without C-02"),
    v("remove-with-gone-paths", "C-03.3", "C-03's message names the network namespace that is gone"),
    v("remove-without-labels", "C-03.4", "C-03's message has no labels and annotations"),
    v("remove-unknown-fails", "C-03.5", "RemovePodSandbox of an unknown id fails with NOT_FOUND"),
    v("update-pod-without-resources", "C-12.1", "C-12's request has empty resources"),
    v("update-pod-veto-ignored", "C-12.2", "a plugin's error at C-12 is only logged"),
    v("update-pod-veto-keeps-new-values", "C-12.2", "after a plugin's error at C-12 the call fails, but the new values are kept"),
    v("post-update-pod-with-old-values", "C-13.1", "C-13 is sent with the values from before the update"),
    v("post-update-pod-after-failure", "C-13.2", "C-13 is sent after a failed UpdatePodSandboxResources"),
    v("create-listed-early", "C-04.1", "ListContainers shows a container while plugins are in C-04"),
    v("create-unmerged", "C-04.2", "at C-04 each plugin sees the container as it was requested, not as earlier plugins adjusted it"),
    v("create-conflict-ignored", "C-04.3", "where two plugins set the same thing at C-04, the first holds and nobody is told"),
    v("create-rejection-ignored", "C-04.4", "a validator's rejection passes"),
    v("create-silent-validator-accepts", "C-04.4", "a validator that does not answer in time, or is lost, counts as one that accepts"),
    v("create-first-rejection-only", "C-04.4", "of several rejections only the first is reported"),
    v("create-without-owners", "C-04.4", "validators are not told who set what"),
    v("create-updates-dropped", "C-04.5", "updates of other containers in answers at C-04 are dropped"),
    v("create-evictions-dropped", "C-04.5", "evictions in answers at C-04 are dropped"),
    v("adjust-drops-env", "C-04.6", "adjusted environment variables do not reach the container"),
    v("adjust-drops-mounts", "C-04.6", "adjusted mounts do not reach the container"),
    v("adjust-drops-rlimits", "C-04.6", "adjusted rlimits do not reach the container"),
    v("adjust-drops-hooks", "C-04.6", "adjusted OCI hooks are not run"),
    v("adjust-drops-memory-limit", "C-04.6", "an adjusted memory limit does not reach the cgroup"),
    v("create-veto-without-undo", "C-04.7", "after a veto at C-04 plugins get neither C-10 nor C-11"),
    v("create-in-stopped-pod-told", "C-04.8", "CreateContainer in a stopped pod is refused, and calls C-04 afterwards"),
    v("post-create-unlisted", "C-05.1", "C-05 is sent before the container is listed"),
    v("start-without-pid", "C-06.1", "C-06's message has no pid"),
    v("start-veto-ignored", "C-06.2", "a plugin's error at C-06 is only logged: the program runs"),
    v("start-veto-without-stop", "C-06.2", "after a start that failed there is no C-10 until the container is removed"),
    v("start-error-nameless", "C-06.2", "a container whose start failed has another reason than StartError"),
    v("post-start-early", "C-07.1", "C-07 is sent before the program runs and the container is RUNNING"),
    v("later-update-sees-the-request", "C-08.1", "at C-08 a later plugin sees the values of the request"),
    v("update-request-wins", "C-08.2", "at UpdateContainerResources the request's values hold, what plugins set is dropped"),
    v("update-drops-the-request", "C-08.2", "at UpdateContainerResources a request that no plugin changed is dropped, and the CPU of one that a plugin changed"),
    v("update-others-dropped", "C-08.3", "updates of other containers in answers at C-08 are dropped"),
    v("updates-hit-another-container", "C-08.3", "updates of other containers reach another than the one they name, where there is one"),
    v("update-veto-applies", "C-08.4", "after a plugin's error at C-08 the call fails, but the request's values are applied"),
    v("update-conflict-ignored", "C-08.4", "where two plugins update the same thing at C-08, the first holds and the call succeeds"),
    v("unsolicited-makes-events", "C-08.5", "an update that a plugin sends by itself makes C-08 and C-09"),
    v("post-update-early", "C-09.1", "C-09 is sent before the new values are in the cgroup"),
    v("post-update-after-failure", "C-09.2", "C-09 is sent after a failed UpdateContainerResources"),
    v("exit-told-twice", "C-10.1", "the end of a container is told again, when it is stopped or removed"),
    v("exit-told-late", "C-10.2", "an exit by itself is told only when the container is removed"),
    v("stop-updates-dropped", "C-10.4", "updates of other containers in answers at C-10 are dropped"),
    v("last-update-wins-at-stop", "C-10.4", "where two plugins update the same thing at C-10, the last holds"),
    v("remove-container-late", "C-11.1", "C-11 is sent after the container has left the list"),
    v("plugins-in-order-of-joining", "G-01", "plugins are called in the order in which they joined, whatever their index"),
    v("equal-indices-newest-first", "G-01", "of equal indices the plugin that joined last comes first"),
    v("busy-plugin-gets-another", "G-02", "a plugin whose caller gave up gets the next event at once"),
    v("request-timeout-tripled", "G-07", "a plugin has three times its limit for an event"),
    v("late-plugin-stays", "G-08", "a plugin that misses the request timeout is not closed and gets the next event"),
    v("late-plugin-fails-the-call", "G-08", "a plugin that misses the request timeout fails the call at setup, whatever its policy"),
    v("closed-without-goodbye", "G-09", "a plugin is closed without Shutdown"),
    v("shutdown-without-reason", "G-09", "Shutdown has no reason where the protocol has a place for one"),
    v("registration-never-late", "G-10", "a connection that does not register is kept"),
    v("lost-plugin-fails-the-call", "G-11", "a plugin whose connection is lost during a call fails it at setup, whatever its policy"),
    v("restart-forgets-the-run", "G-13", "a pod that was in C-01 when the daemon died is rolled back without C-02 and C-03"),
    v("restart-forgets-the-stop", "G-15", "a pod that was being stopped when the daemon died is not stopped further"),
    v("restart-misses-an-exit", "G-19", "a container whose C-10 was begun when the daemon died gets none"),
    v("join-lists-nothing", "G-22", "Synchronize lists no containers"),
    v("join-misses-a-pod", "G-22", "Synchronize lacks the last pod"),
    v("join-tells-twice", "G-22", "what is being made when a plugin joins is in its list and gets its event as well"),
    v("later-parts-lost", "G-22", "of a list that comes in parts only the first is sent"),
    v("join-lists-exited", "G-23", "Synchronize lists containers that have exited"),
    v("no-turn", "G-25", "C-04, C-08 and C-10 of two pods run side by side"),
    v("unsolicited-dropped", "G-26", "updates that a plugin sends by itself are answered as done and dropped"),
    v("unsolicited-failures-hidden", "G-26", "updates that a plugin sends by itself and that fail are not in `failed`"),
    v("evicted-without-reason", "G-27", "the reason of an eviction is not in the container's status"),
    v("evicted-with-grace", "G-27", "an evicted container has half a minute of grace"),
    v("env-values-in-errors", "G-28", "the error of a conflict over a variable tells its value"),
    v("required-ignored", "G-30", "pods and containers are made although a required plugin is not there"),
    v("tolerance-ignored", "G-30", "the annotation that lets a pod through without a required plugin does not"),
    v("missed-events-lost", "G-31", "what a must-run plugin missed is not kept"),
    v("missed-events-reversed", "G-31", "what a must-run plugin missed comes in reverse order"),
    v("fail-request-ignored", "G-32", "failure_policy.fail_request of a plugin is ignored"),
    v("teardown-failure-hidden", "G-32", "at teardown the failure of such a plugin is not told in the end"),
    v("keep-connected-ignored", "G-33", "failure_policy.keep_connected of a plugin is ignored"),
    v("late-create-not-undone", "G-34", "after a late answer to C-04 the plugin gets no C-10 and C-11"),
    v("breaker-fails-open", "G-35", "a plugin that misses events without end is never closed"),
    v("masked-events-sent", "G-36", "a plugin gets events that its table in cairn.toml keeps from it"),
    v("denied-field-passes", "G-36", "a field that a plugin may not adjust is adjusted"),
    v("ended-plugin-not-restarted", "G-37", "a launched plugin that ended is not started again"),
    v("state-change-not-sent", "G-39", "a plugin that knows only StateChange gets no plain event"),
    v("replaced-plugin-stays", "G-40", "the older of two instances is not closed"),
];

/// Breaks one rule from now on.
///
/// # Errors
/// The name is none.
#[cfg(feature = "fault")]
pub fn arm(name: &str) -> Result<(), String> {
    let known = ALL.iter().any(|violation| violation.name == name);
    if !known {
        return Err(format!(
            "--violate {name}: unknown; --violate list prints the names"
        ));
    }
    nri::violate::arm(name);
    Ok(())
}

/// # Errors
/// Always: this build breaks no rules on purpose.
#[cfg(not(feature = "fault"))]
pub fn arm(name: &str) -> Result<(), String> {
    Err(format!(
        "--violate {name}: only a build with the feature fault breaks rules (cargo build --features cairn/fault)"
    ))
}

/// All names, with the guarantee that each breaks and what happens instead; one a line.
#[cfg(feature = "fault")]
pub fn list() -> String {
    let width = ALL.iter().map(|v| v.name.len()).max().unwrap_or(0);
    ALL.iter()
        .map(|v| format!("{:width$}  {:7}  {}\n", v.name, v.breaks, v.instead))
        .collect()
}

#[cfg(all(test, feature = "fault"))]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use super::*;

    /// Names that the sources below `dir` ask for, and how often.
    fn asked(dir: &Path, names: &mut BTreeMap<String, usize>) {
        for entry in fs::read_dir(dir).expect("our sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                asked(&path, names);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                for rest in text.split(concat!("violate::is", "(\"")).skip(1) {
                    let name = rest.split('"').next().unwrap_or_default();
                    *names.entry(name.to_owned()).or_default() += 1;
                }
            }
        }
    }

    #[test]
    fn each_violation_is_asked_for_at_one_place_and_no_other_name_is() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = BTreeMap::new();
        asked(&here.join("src"), &mut names);
        asked(&here.join("../nri/src"), &mut names);
        let listed: BTreeMap<String, usize> = ALL.iter().map(|v| (v.name.to_owned(), 1)).collect();
        assert_eq!(listed.len(), ALL.len(), "a name is listed twice");
        assert_eq!(names, listed);
    }

    #[test]
    fn each_violation_breaks_a_guarantee_that_the_contract_has() {
        let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CONTRACT.md");
        let contract = fs::read_to_string(contract).expect("CONTRACT.md");
        let ids: BTreeSet<&str> = contract
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
            .collect();
        for violation in ALL {
            assert!(ids.contains(violation.breaks), "{}", violation.breaks);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_and_the_list_has_a_line_for_each() {
        let refused = arm("nothing").expect_err("unknown");
        assert!(refused.contains("nothing: unknown"), "{refused}");
        assert_eq!(list().lines().count(), ALL.len());
    }
}

//! Fields of the process: environment, arguments, hooks, priorities, rlimits.

use cairn::oci::apply_adjustment;
use proto_nri as nri;

use super::{
    applied, apply, context, everything, host, of_linux, process, refused, rlimit, variable,
};

#[test]
fn variables_keep_their_places_when_changed_and_new_ones_follow() {
    let f = host();
    let mut spec = f.spec().spec;
    let old = ["A=1", "odd", "B=2", "A=again", "C=3"]
        .map(str::to_owned)
        .to_vec();
    if let Some(process) = spec.process_mut() {
        process.set_env(Some(old));
    }
    let adjust = nri::ContainerAdjustment {
        env: vec![
            variable("NEW", "n"),
            variable("-C", ""),
            variable("A", "x"),
            variable("", "ignored"),
            variable("-B", ""),
            variable("B", "y=z"),
        ],
        ..Default::default()
    };
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    let env = process(&spec).env().clone().expect("env");
    assert_eq!(env, ["A=x", "odd", "B=y=z", "NEW=n"]);
}

#[test]
fn a_refusal_about_a_variable_hides_its_value() {
    for bad in [variable("TOKEN", "secret\0"), variable("TO=KEN", "secret")] {
        let text = refused(&nri::ContainerAdjustment {
            env: vec![bad],
            ..Default::default()
        });
        assert!(
            text.contains("adjust.env") && !text.contains("secret"),
            "{text}"
        );
    }
}

#[test]
fn arguments_are_replaced_as_a_whole_and_a_lone_marker_changes_nothing() {
    let args = |list: &[&str]| {
        let spec = applied(&nri::ContainerAdjustment {
            args: list.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        });
        process(&spec).args().clone().expect("args")
    };
    assert_eq!(args(&["/new", "x"]), ["/new", "x"]);
    assert_eq!(args(&["", "/new"]), ["/new"]);
    assert_eq!(args(&[""]), ["/bin/serve"]);
    assert_eq!(args(&[]), ["/bin/serve"]);
}

#[test]
fn hooks_are_appended_per_kind_in_plugin_order() {
    let f = host();
    let mut spec = f.spec().spec;
    for name in ["/h/one", "/h/two"] {
        let adjust = nri::ContainerAdjustment {
            hooks: Some(nri::Hooks {
                create_runtime: vec![nri::Hook {
                    path: name.to_owned(),
                    ..nri::Hook::default()
                }],
                ..nri::Hooks::default()
            }),
            ..Default::default()
        };
        apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    }
    let hooks = spec.hooks().clone().expect("hooks");
    let paths: Vec<_> = hooks
        .create_runtime()
        .iter()
        .flatten()
        .map(|h| h.path().clone())
        .collect();
    assert_eq!(paths, [std::path::PathBuf::from("/h/one"), "/h/two".into()]);
    for (path, timeout) in [("relative", 5), ("/h", 0), ("/h", -1)] {
        let text = refused(&nri::ContainerAdjustment {
            hooks: Some(nri::Hooks {
                poststop: vec![nri::Hook {
                    path: path.to_owned(),
                    timeout: Some(nri::OptionalInt { value: timeout }),
                    ..nri::Hook::default()
                }],
                ..nri::Hooks::default()
            }),
            ..Default::default()
        });
        assert!(text.contains("adjust.hooks"), "{text}");
    }
}

#[test]
fn the_score_is_checked_against_the_kernels_range() {
    let score = |value| {
        of_linux(nri::LinuxContainerAdjustment {
            oom_score_adj: Some(nri::OptionalInt { value }),
            ..Default::default()
        })
    };
    assert_eq!(
        process(&applied(&score(-1000))).oom_score_adj(),
        Some(-1000)
    );
    assert_eq!(process(&applied(&score(0))).oom_score_adj(), Some(0));
    for bad in [1001, -1001, i64::MAX] {
        assert!(refused(&score(bad)).contains("adjust.linux.oom_score_adj"));
    }
}

#[test]
fn class_none_removes_the_io_priority_and_policy_none_the_scheduler() {
    let f = host();
    let mut spec = applied(&everything());
    assert!(process(&spec).io_priority().is_some() && process(&spec).scheduler().is_some());
    let adjust = of_linux(nri::LinuxContainerAdjustment {
        io_priority: Some(nri::LinuxIoPriority::default()),
        scheduler: Some(nri::LinuxScheduler::default()),
        ..Default::default()
    });
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    assert!(process(&spec).io_priority().is_none() && process(&spec).scheduler().is_none());
}

#[test]
fn priorities_that_the_kernel_would_refuse_are_refused_by_name() {
    for (class, priority) in [(2, 8), (2, -1), (9, 0)] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            io_priority: Some(nri::LinuxIoPriority { class, priority }),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.io_priority"), "{text}");
    }
    let fifo = nri::LinuxSchedulerPolicy::SchedFifo as i32;
    let other = nri::LinuxSchedulerPolicy::SchedOther as i32;
    let none = nri::LinuxScheduler::default;
    for bad in [
        nri::LinuxScheduler {
            policy: 99,
            ..none()
        },
        nri::LinuxScheduler {
            policy: fifo,
            priority: 0,
            ..none()
        },
        nri::LinuxScheduler {
            policy: fifo,
            priority: 100,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            priority: 1,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            nice: 20,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            runtime: 1,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![77],
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![nri::LinuxSchedulerFlag::SchedFlagUtilClampMax as i32],
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![nri::LinuxSchedulerFlag::SchedFlagReclaim as i32],
            ..none()
        },
        nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedIso as i32,
            ..none()
        },
        nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedDeadline as i32,
            runtime: 5000,
            deadline: 4000,
            ..none()
        },
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            scheduler: Some(bad),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.scheduler"), "{text}");
    }
}

#[test]
fn a_limit_of_a_type_is_replaced_under_either_name() {
    let mut f = host();
    f.policy.rlimits = vec![("nofile".to_owned(), 1, 2)];
    let adjust = nri::ContainerAdjustment {
        rlimits: vec![rlimit("RLIMIT_NOFILE", 5, 6), rlimit("core", 0, 0)],
        ..Default::default()
    };
    let spec = apply(&f, &adjust).expect("applied");
    let list = process(&spec).rlimits().clone().expect("limits");
    let text: Vec<_> = list
        .iter()
        .map(|l| format!("{} {} {}", l.typ(), l.soft(), l.hard()))
        .collect();
    assert_eq!(text, ["RLIMIT_NOFILE 5 6", "RLIMIT_CORE 0 0"]);
    for bad in [rlimit("files", 1, 1), rlimit("nofile", 2, 1)] {
        assert!(
            refused(&nri::ContainerAdjustment {
                rlimits: vec![bad],
                ..Default::default()
            })
            .contains("rlimits")
        );
    }
}

//! hook-injector: the injected hooks, their conditions, and their files.

use nri::adjust::Strip;

use crate::world::{World, container, pod};

fn hook(when: &str, path: &str) -> String {
    format!(
        r#"{{"version": "1.0.0", "hook": {{"path": "{path}", "args": ["a"], "timeout": 3}},
            "when": {when}, "stages": ["prestart", "poststop"]}}"#
    )
}

#[tokio::test]
async fn hooks_are_injected_where_their_conditions_hold() {
    let mut world = World::start().await;
    let (low, high) = (world.path("low"), world.path("high"));
    let flags = ["-idx", "10", "-hooks-dir", &low, "-hooks-dir", &high];
    world
        .run(
            env!("CARGO_BIN_EXE_hook-injector"),
            &flags,
            &["10-hook-injector"],
        )
        .await;
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("no directory, no hooks");
    assert_eq!(merged.adjust.strip(), None);

    world.write("low/README", "not a hook");
    for (when, holds) in [
        (r#"{"always": true}"#, true),
        (r#"{"always": false}"#, false),
        (r#"{"hasBindMounts": true}"#, true),
        (r#"{"hasBindMounts": false}"#, false),
        (r#"{"commands": ["^/usr/bin/x$", "/sh$"]}"#, true),
        (r#"{"commands": ["^sh"]}"#, false),
        (r#"{"annotations": {"^a": "^1$"}}"#, true),
        (r#"{"annotations": {"^a": "^2$"}}"#, false),
        (r#"{"always": true, "commands": ["^sh"]}"#, false),
        (
            r#"{"always": false, "commands": ["sh$"], "or": true}"#,
            true,
        ),
    ] {
        world.write("low/h.json", &hook(when, "/low"));
        let merged = world
            .create(pod(&[("abc", "1")]), container())
            .await
            .expect(when);
        let hooks = merged.adjust.hooks.expect("always present");
        assert_eq!(hooks.prestart.len(), usize::from(holds), "{when}");
        assert_eq!(hooks.poststop.len(), usize::from(holds), "{when}");
        assert_eq!(hooks.create_runtime, []);
    }
    world.write("low/h.json", &hook(r#"{"always": true}"#, "/low"));
    world.write("high/h.json", &hook(r#"{"always": true}"#, "/high"));
    world.write("low/a.json", &hook(r#"{"always": true}"#, "/first"));
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("three files, two names");
    let hooks = merged.adjust.hooks.expect("always present").prestart;
    let paths: Vec<_> = hooks.iter().map(|h| h.path.as_str()).collect();
    assert_eq!(paths, ["/first", "/high"]);
    assert_eq!(hooks[0].timeout.as_ref().map(|t| t.value), Some(3));
}

#[tokio::test]
async fn a_hook_file_that_cannot_be_understood_fails_the_creation_by_name() {
    let mut world = World::start().await;
    let dir = world.path("hooks");
    let flags = ["-idx", "10", "-hooks-dir", &dir];
    world
        .run(
            env!("CARGO_BIN_EXE_hook-injector"),
            &flags,
            &["10-hook-injector"],
        )
        .await;
    let always = r#"{"always": true}"#;
    for (text, reported) in [
        ("{".to_owned(), "EOF"),
        (hook("{}", "/x"), "no condition"),
        (hook(r#"{"commands": ["("]}"#, "/x"), "pattern"),
        (hook(always, "x"), "must be absolute"),
        (hook(always, "/x").replace("1.0.0", "0.1.0"), "0.1.0"),
        (
            hook(always, "/x").replace("poststop", "precreate"),
            "precreate",
        ),
        (
            hook(always, "/x").replace(r#""prestart", "poststop""#, ""),
            "no stage",
        ),
    ] {
        world.write("hooks/bad.json", &text);
        let refused = world
            .create(pod(&[]), container())
            .await
            .expect_err(reported);
        assert!(
            refused.contains("bad.json") && refused.contains(reported),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn without_watching_the_hooks_are_those_of_the_start() {
    let mut world = World::start().await;
    let dir = world.path("hooks");
    world.write("hooks/h.json", &hook(r#"{"always": true}"#, "/then"));
    let flags = ["-idx", "10", "-disableWatch", "-hooks-dir", &dir];
    world
        .run(
            env!("CARGO_BIN_EXE_hook-injector"),
            &flags,
            &["10-hook-injector"],
        )
        .await;
    world.write("hooks/h.json", "junk");
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("it was read before");
    assert_eq!(
        merged.adjust.hooks.expect("always present").prestart[0].path,
        "/then"
    );
}

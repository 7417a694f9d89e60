//! Modules as plugins: launched by a runtime, called by both ABIs of Go's SDK, stopped at their
//! deadline, and rejected by name if they are invalid. The runtime side is the crate's own; the
//! modules are Go's, or text.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::{Duration, Instant},
};

use common::{Place, container, pod, until, until_active};
use nri::{
    Adaptation, EventMask, Kind, Outcome, PluginEvent, PluginId, PluginSettings, Settings,
    policy::OnTimeout, proto::*,
};
use prost::Message as _;

const HOST: &str = env!("CARGO_BIN_EXE_nri-wasm");

/// A module with these imports, the exports of every plugin, and `more`. Its answer is at 1024.
fn module(imports: &str, answer: &[u8], more: &str) -> Vec<u8> {
    let answer: String = answer.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            {imports}
            (memory (export "memory") 4)
            (data (i32.const 1024) "{answer}")
            (global $top (mut i32) (i32.const 65536))
            (func (export "malloc") (param i32) (result i32)
                global.get $top
                (global.set $top (i32.add (global.get $top) (local.get 0))))
            (func (export "free") (param i32))
            (func (export "plugin_api_version") (result i64) (i64.const 1))
            (func (export "plugin_configure") (param i32 i32) (result i64) (i64.const 0))
            (func (export "plugin_synchronize") (param i32 i32) (result i64) (i64.const 0))
            (func (export "plugin_shutdown") (param i32 i32) (result i64) (i64.const 0))
            {more})"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// A function of the plugin that answers the first `length` bytes at 1024; bit 31 makes them an
/// error.
fn answers(function: &str, length: usize, error: bool) -> String {
    let word = (1024_u64 << 32) | (u64::from(error) << 31) | length as u64;
    format!("(func (export \"{function}\") (param i32 i32) (result i64) (i64.const {word}))")
}

/// A runtime with this file in its plugin directory.
async fn runtime_with(place: &Place, module: &[u8], on_timeout: Option<OnTimeout>) -> Adaptation {
    started(place, module, on_timeout, Some(HOST.into())).await
}

async fn started(
    place: &Place,
    module: &[u8],
    on_timeout: Option<OnTimeout>,
    wasm_host: Option<PathBuf>,
) -> Adaptation {
    let dir = place.dir.path().join("plugins");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("10-module");
    fs::write(&file, module).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let config = place.dir.path().join("conf.d");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("module.conf"), "a word").unwrap();
    let mut settings = PluginSettings::default();
    settings.policy.on_timeout = on_timeout;
    let id: PluginId = "10-module".parse().unwrap();
    let mut all = Settings {
        socket: None,
        plugin_dir: Some(dir),
        plugin_config_dir: Some(config),
        wasm_host,
        plugins: BTreeMap::from([(id, settings)]),
        ..Settings::default()
    };
    all.timeouts.request = Duration::from_secs(2);
    place.builder().settings(all).start().await.unwrap()
}

fn named(name: &str) -> PodSandbox {
    PodSandbox {
        name: name.to_owned(),
        ..pod(name)
    }
}

async fn create(nri: &Adaptation, name: &str) -> Result<nri::Created, nri::Refused> {
    let turn = nri.turn(Event::CreateContainer).await;
    let container = Container {
        name: name.to_owned(),
        ..container(name, "p")
    };
    nri.create_container(&turn, named("p"), container).await
}

/// Builds Go's plugin with one generation of its SDK; `None` if Go is skipped.
fn go(generation: &str) -> Option<Vec<u8>> {
    if env::var_os("NRI_WITHOUT_GO").is_some() {
        eprintln!("left out: NRI_WITHOUT_GO is set");
        return None;
    }
    // Two concurrent builds of one file would read each other's incomplete output.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _alone = BUILDING.lock();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{generation}.wasm"));
    let built = Command::new("go")
        .args(["build", "-buildmode=c-shared", "-o"])
        .arg(&out)
        .args([&format!("-modfile={generation}.mod"), "./wasm"])
        .envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("CGO_ENABLED", "0")])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/go"))
        .status();
    let built = built.expect("these tests need Go on the PATH; NRI_WITHOUT_GO=1 leaves them out");
    assert!(built.success(), "go build of {generation}");
    Some(fs::read(out).unwrap())
}

#[tokio::test]
async fn modules_of_both_abis_of_gos_sdk_are_plugins_like_any_other() {
    for (generation, reported) in [("go", "its own function"), ("v0.11", "state change")] {
        let Some(module) = go(generation) else { return };
        let place = Place::new();
        let nri = runtime_with(&place, &module, None).await;
        until_active(&nri, "10-module").await;
        let info = common::there(&nri);
        assert_eq!(info[0].kind, Some(Kind::Launched));
        // The old ABI has no function for PostUpdatePodSandbox; the plugin gets the event
        // nevertheless.
        assert_eq!(info[0].events, EventMask::ALL, "{generation}");
        nri.run_pod_sandbox(named("p")).await.unwrap();
        let refused = nri.run_pod_sandbox(named("bad")).await.unwrap_err();
        assert!(refused.to_string().contains("a bad pod"), "{refused}");
        let created = create(&nri, "c").await.unwrap();
        let pods = &created.merged.adjust.annotations["pods"];
        assert_eq!(pods, &format!(" p ({reported})"), "{generation}");
        let refused = create(&nri, "bad").await.unwrap_err();
        assert!(refused.to_string().contains("a bad container"), "{refused}");
        nri.shutdown("the test has ended").await;
    }
}

#[tokio::test]
async fn a_go_module_that_sleeps_or_spins_is_stopped_at_its_deadline_and_a_new_instance_answers() {
    let Some(module) = go("go") else { return };
    let place = Place::new();
    let nri = runtime_with(&place, &module, Some(OnTimeout::Keep)).await;
    until_active(&nri, "10-module").await;
    nri.run_pod_sandbox(named("before")).await.unwrap();
    for name in ["hang", "spin"] {
        let created = create(&nri, name).await.unwrap();
        assert!(
            matches!(created.deliveries[0].outcome, Outcome::TimedOut),
            "{name}"
        );
        // The process stays the same, but has no state: the state ended with the instance.
        let begun = Instant::now();
        let created = create(&nri, "c").await.unwrap();
        assert!(
            matches!(created.deliveries[0].outcome, Outcome::Answered),
            "{name}: {:?}",
            created.deliveries
        );
        assert_eq!(created.merged.adjust.annotations["pods"], "");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}");
    }
    nri.shutdown("the test has ended").await;
}

#[tokio::test]
async fn a_module_subscribes_to_what_it_exports_and_its_answers_count() {
    let adjust = ContainerAdjustment {
        annotations: BTreeMap::from([("module".to_owned(), "was here".to_owned())]),
        ..Default::default()
    };
    let answer = CreateContainerResponse {
        adjust: Some(adjust),
        ..Default::default()
    };
    let answer = answer.encode_to_vec();
    let function = answers("plugin_create_container", answer.len(), false);
    let place = Place::new();
    let nri = runtime_with(&place, &module("", &answer, &function), None).await;
    until_active(&nri, "10-module").await;
    let events = common::there(&nri)[0].events;
    assert_eq!(events.to_string(), "CreateContainer");
    let created = create(&nri, "c").await.unwrap();
    assert_eq!(created.merged.adjust.annotations["module"], "was here");
    nri.shutdown("the test has ended").await;
}

/// A `plugin_create_container` with this body.
fn creates(body: &str) -> String {
    format!("(func (export \"plugin_create_container\") (param i32 i32) (result i64) {body})")
}

const EXIT: &str = r#"(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
const OPEN: &str = r#"(import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))"#;
const READ: &str = r#"(import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))"#;
const LOG: &str = r#"(import "env" "log" (func $log (param i32 i32) (result i64)))"#;

#[tokio::test]
async fn what_a_module_does_wrong_is_its_error_and_nothing_of_the_host_is_its_own() {
    // Returns WASI's result as the length of an error's text.
    let errno = |call: &str| {
        creates(&format!(
            "(i64.or (i64.const {}) (i64.extend_i32_u {call}))",
            (1024_u64 << 32) | (1 << 31)
        ))
    };
    let open = "(call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0))";
    let read = "(call $read (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))";
    for (imports, function, why) in [
        ("", creates("unreachable"), "unreachable"),
        ("", creates("(i64.const -2147483649)"), "longer than 4 MiB"),
        (
            "",
            creates("(i64.const 0x7fffffff00000001)"),
            "is outside of its memory",
        ),
        (
            "",
            creates(
                "(drop (memory.grow (i32.const 60000))) (i32.store8 (i32.const 1000000000) (i32.const 1)) (i64.const 0)",
            ),
            "out of bounds memory access",
        ),
        (
            "",
            creates("(call 0 (i32.const 0)) (drop) (call 6 (local.get 0) (local.get 1))"),
            "call stack exhausted",
        ),
        (
            EXIT,
            creates("(call $exit (i32.const 3)) (i64.const 0)"),
            "it has exited with code 3",
        ),
        // 52 and 8: no such function, and no such descriptor.
        (
            OPEN,
            errno(open),
            "0123456789012345678901234567890123456789012345678901",
        ),
        (READ, errno(read), "01234567"),
        (
            LOG,
            creates("(call $log (i32.const 0) (i32.const -1))"),
            "env.log: a message of more than 64 KiB",
        ),
    ] {
        let place = Place::new();
        let answer = "0123456789".repeat(7);
        let module = module(imports, answer.as_bytes(), &function);
        let nri = runtime_with(&place, &module, None).await;
        until_active(&nri, "10-module").await;
        let refused = create(&nri, "c").await.expect_err(why).to_string();
        assert!(
            refused.ends_with(why) || refused.contains(why) && why.len() > 8,
            "{why}: {refused}"
        );
        nri.shutdown("the test has ended").await;
    }
}

/// The host's work costs a module no fuel, so the clock must be checked.
#[tokio::test]
async fn a_module_that_has_the_host_work_without_end_is_stopped_at_its_deadline() {
    let random = r#"(import "wasi_snapshot_preview1" "random_get" (func $work (param i32 i32) (result i32)))"#;
    let log = r#"(import "env" "log" (func $work (param i32 i32) (result i64)))"#;
    for (imports, length) in [(random, 65536), (log, 0)] {
        let place = Place::new();
        let forever = creates(&format!(
            "(loop $again (drop (call $work (i32.const 65536) (i32.const {length}))) (br $again)) (i64.const 0)"
        ));
        let quick = answers("plugin_run_pod_sandbox", 0, false);
        let module = module(imports, b"", &(forever + &quick));
        let nri = runtime_with(&place, &module, Some(OnTimeout::Keep)).await;
        until_active(&nri, "10-module").await;
        let created = create(&nri, "c").await.unwrap();
        assert!(
            matches!(created.deliveries[0].outcome, Outcome::TimedOut),
            "{:?}",
            created.deliveries
        );
        let ran = nri.run_pod_sandbox(named("p")).await.unwrap();
        assert!(
            matches!(ran.deliveries[0].outcome, Outcome::Answered),
            "{:?}",
            ran.deliveries
        );
        nri.shutdown("the test has ended").await;
    }
}

#[tokio::test]
async fn a_runtime_without_the_host_leaves_modules_out_by_name() {
    for (host, why) in [
        (
            None,
            "is a WebAssembly module, which this runtime does not run",
        ),
        (
            Some("/nowhere/nri-wasm".into()),
            "is a WebAssembly module, and what runs them is not installed: /nowhere/nri-wasm: No such file",
        ),
    ] {
        let place = Place::new();
        let nri = started(&place, &module("", b"", ""), None, host).await;
        until("it is told", || {
            let reported = place.seen.plugins.lock().unwrap();
            let rejected = |event: &PluginEvent| matches!(event, PluginEvent::Rejected { reason } if reason.contains(why));
            reported.iter().any(|(_, event)| rejected(event))
        })
        .await;
        nri.run_pod_sandbox(named("p")).await.unwrap();
    }
}

#[test]
fn a_file_that_is_no_plugin_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-bad");
    let good = module("", b"", "");
    let without = |what: &str| {
        let mut bytes = good.clone();
        let at = bytes
            .windows(what.len())
            .position(|part| part == what.as_bytes())
            .unwrap();
        bytes[at] = b'X';
        bytes
    };
    let grows = |more: &str| {
        let text = format!("(module {more} (func (export \"plugin_configure\") (param i32 i32) (result i64) (i64.const 0))
            (func (export \"plugin_synchronize\") (param i32 i32) (result i64) (i64.const 0))
            (func (export \"plugin_shutdown\") (param i32 i32) (result i64) (i64.const 0)))");
        wat::parse_str(text).unwrap()
    };
    for (bytes, why) in [
        (
            grows("(memory 4096) (memory 4096)"),
            "not a module that can be run",
        ),
        (grows("(memory 4097)"), "not a module that can be run"),
        (
            grows("(table 4000000000 funcref)"),
            "not a module that can be run",
        ),
        (
            grows("(table 1000000 funcref)"),
            "not a module that can be run",
        ),
        (
            grows(&"(table 100000 funcref)".repeat(9)),
            "not a module that can be run",
        ),
        (b"\0asm".to_vec(), "not a module that can be run"),
        (
            without("plugin_configure"),
            "exports no plugin_configure: not an NRI plugin",
        ),
        (without("malloc"), "exports no malloc: not an NRI plugin"),
        (without("memory"), "exports no memory: not an NRI plugin"),
        (
            without("plugin_api_version"),
            "exports no plugin_api_version",
        ),
        (
            wat::parse_str("(module (func $f) (start $f))").unwrap(),
            "start functions",
        ),
    ] {
        fs::write(&file, bytes).unwrap();
        let output = Command::new(HOST).arg(&file).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && printed.contains(why),
            "{why}: {printed}"
        );
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}

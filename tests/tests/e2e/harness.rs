//! The harness itself: the assumptions of the other tests.

use std::{fs, process::Command, time::Duration};

use cairn_tests::{
    bins,
    image::{Image, digest},
    look, until,
    yard::Yard,
};

#[tokio::test]
async fn what_lives_in_a_yard_ends_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let mut yard = Yard::new().await;
    // A grandchild in its own session, without a waiting parent: only the end of the namespace ends
    // it.
    let script = format!(
        "setsid sh -c 'echo $$ >{0}/pid; ip link add yard0 type bridge; exec sleep 1000' & exit 7",
        dir.path().display()
    );
    let pid = yard
        .run(&["sh", "-c", &script], &[], &log)
        .await
        .expect("a shell starts");
    assert_eq!(yard.ended(pid).await.code(), Some(7));
    until("the grandchild made its link and sleeps", || async {
        let left = fs::read_to_string(dir.path().join("pid")).ok()?;
        let proc = yard.inside(format!("/proc/{}", left.trim()));
        let comm = fs::read_to_string(proc.join("comm")).ok()?;
        (comm == "sleep\n").then_some(())
    })
    .await;
    let links = yard
        .command("ip")
        .args(["link", "show", "yard0"])
        .output()
        .await
        .expect("ip runs");
    assert!(links.status.success(), "{links:?}");
    let marker = yard.pid();
    drop(yard);
    assert!(!std::path::Path::new(&format!("/proc/{marker}")).exists());
    assert!(!std::path::Path::new("/sys/class/net/yard0").exists());
}

#[tokio::test]
async fn a_killed_process_is_told_with_its_signal() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut yard = Yard::new().await;
    let pid = yard
        .run(&["sleep", "1000"], &[], &dir.path().join("log"))
        .await
        .expect("sleep starts");
    assert_eq!(yard.ending(pid), None);
    yard.kill(pid, 9).await;
    assert_eq!(yard.ended(pid).await.signal(), Some(9));
    let missing = yard
        .run(&["/no/such/program"], &[], &dir.path().join("log"))
        .await;
    assert!(missing.is_err_and(|e| e.contains("/no/such/program")));
}

#[tokio::test]
async fn two_yards_have_networks_of_their_own() {
    let (one, two) = (Yard::new().await, Yard::new().await);
    let ns = |yard: &Yard| fs::read_link(format!("/proc/{}/ns/net", yard.pid())).expect("a netns");
    assert_ne!(ns(&one), ns(&two));
    let lo = one
        .command("ip")
        .args(["-br", "link", "show", "lo"])
        .output()
        .await;
    let lo = String::from_utf8(lo.expect("ip runs").stdout).expect("text");
    assert!(lo.contains("UP"), "lo is up in a yard: {lo}");
}

#[test]
fn a_cgroup_with_ending_processes_is_removed() {
    let name = format!("/cairn-test-harness-{}", std::process::id());
    let Some(root) = look::cgroup_dirs("/")
        .into_iter()
        .find(|d| d.join("cgroup.procs").exists())
    else {
        panic!("no cgroup hierarchy is mounted");
    };
    let dir = root.join(name.trim_start_matches('/')).join("below");
    fs::create_dir_all(&dir).expect("root may make cgroups");
    let mut child = Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("sleep starts");
    fs::write(dir.join("cgroup.procs"), child.id().to_string()).expect("it joins");
    assert!(look::cgroup_pids(&name).contains(&child.id()));
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    assert_eq!(look::remove_cgroup(&name), Vec::<std::path::PathBuf>::new());
    assert!(until::blocking(Duration::from_secs(1), || {
        look::cgroup_dirs(&name).is_empty()
    }));
}

#[test]
fn another_program_understands_the_images_made_here() {
    let Some(skopeo) = bins::system("skopeo") else {
        panic!("skopeo is not installed: hack/setup test");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let tar = dir.path().join("image.tar");
    let image = Image::busybox("localhost/cairn-test/made:1").config("User", "app".into());
    let blobs = image.write(&tar);
    let inspect = Command::new(skopeo)
        .args(["inspect", "--raw", "--config"])
        .arg(format!("oci-archive:{}", tar.display()))
        .output()
        .expect("skopeo runs");
    let printed = String::from_utf8_lossy(&inspect.stderr);
    assert!(inspect.status.success(), "{printed}");
    assert_eq!(
        digest(&inspect.stdout),
        blobs.id,
        "the id is the digest of the config"
    );
    let config: serde_json::Value = serde_json::from_slice(&inspect.stdout).expect("JSON");
    assert_eq!(config["config"]["User"], "app");
    assert_eq!(
        image.blobs().manifest,
        blobs.manifest,
        "equal images have equal digests"
    );
}

//! Mounts.

use std::fs;

use cairn_tests::until;
use nri::{
    adjust::Adjust,
    proto::{ContainerAdjustment, Mount},
};

use super::stage::{Stage, bind, fails, sleeper};

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Mount {
    Mount {
        destination: destination.to_owned(),
        r#type: kind.to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|&o| o.to_owned()).collect(),
    }
}

pub(crate) async fn mounts_are_added_replaced_and_removed(stage: &Stage) {
    let volumes = ["old", "new", "gone", "gift"].map(|name| {
        let path = stage.volume(name);
        fs::write(path.join("file"), name).expect("a file");
        path
    });
    let [old, new, gone, gift] = volumes;
    let (new_source, gift_source) = (new.display().to_string(), gift.display().to_string());
    stage.adjusts(move |_, adjust| {
        adjust
            .add_mount(mount("/gift", "bind", &gift_source, &["bind", "ro"]))
            .add_mount(mount("/data", "bind", &new_source, &["rbind", "rw"]))
            .add_mount(mount(
                "/scratch",
                "tmpfs",
                "tmpfs",
                &["nosuid", "nodev", "noexec", "mode=700", "size=64k"],
            ))
            .remove_mount("/gone");
    });
    let pod = stage.pod("mounts").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.mounts = vec![bind(&old, "/data"), bind(&gone, "/gone")];
    let container = pod.started(config).await;
    assert_eq!(container.exec(&["cat", "/gift/file"]).await, "gift");
    let denied = fails(&container, "touch /gift/x").await;
    assert!(denied.contains("Read-only"), "{denied}");
    assert_eq!(container.exec(&["cat", "/data/file"]).await, "new");
    container.exec(&["touch", "/data/x"]).await;
    assert!(new.join("x").exists() && !old.join("x").exists());
    fails(&container, "test -e /gone").await;
    let scratch = container
        .sh("grep ' /scratch ' /proc/mounts; stat -c %a /scratch")
        .await;
    for word in ["tmpfs", "nosuid", "nodev", "noexec", "size=64k", "700"] {
        assert!(scratch.contains(word), "{word}: {scratch}");
    }
    pod.end().await;
}

pub(crate) async fn a_mount_propagates_as_its_options_say(stage: &Stage) {
    let source = stage.volume("shared").display().to_string();
    stage
        .machine(&["mount", "-t", "tmpfs", "tmpfs", &source])
        .await;
    stage.machine(&["mount", "--make-shared", &source]).await;
    let (from, to) = (source.clone(), ["rshared", "rslave", "rprivate"]);
    stage.adjusts(move |name, adjust| {
        if to.contains(&name) {
            adjust.add_mount(mount("/m", "bind", &from, &["rbind", name]));
        }
    });
    let pod = stage.pod("propagation").await;
    let [a, b, c] = [
        sleeper(&pod, "rshared").await,
        sleeper(&pod, "rslave").await,
        sleeper(&pod, "rprivate").await,
    ];
    for (container, word) in [(&a, "shared:"), (&b, "master:"), (&c, " - ")] {
        let line = container.sh("grep ' /m ' /proc/self/mountinfo").await;
        let (flags, _) = line.split_once(" - ").expect("a separator");
        let tags: Vec<&str> = flags.split(' ').skip(6).collect();
        match word {
            " - " => assert!(tags.is_empty(), "{line}"),
            word => assert!(tags.iter().any(|t| t.starts_with(word)), "{line}"),
        }
    }
    let below = format!("{source}/below");
    stage.machine(&["mkdir", &below]).await;
    stage
        .machine(&["mount", "-t", "tmpfs", "tmpfs", &below])
        .await;
    stage.machine(&["touch", &format!("{below}/file")]).await;
    for container in [&a, &b] {
        until("the machine's mount arrives", || async {
            let there = container.try_exec(&["test", "-e", "/m/below/file"], 10);
            (there.await.ok()?.code == 0).then_some(())
        })
        .await;
    }
    fails(&c, "test -e /m/below/file").await;
    pod.end().await;
}

pub(crate) async fn a_source_that_is_not_there_fails_the_creation_and_the_start_by_mount_and_plugin(
    stage: &Stage,
) {
    let pod = stage.pod("gone").await;
    let volume = stage.volume("volume");
    let (here, never) = (volume.display().to_string(), volume.join("never"));
    let mut adjust = ContainerAdjustment::default();
    let missing = mount("/x", "bind", &never.display().to_string(), &["rbind"]);
    adjust.add_mount(missing);
    let wanted = r#"adjust.mounts["/x"] (set by 10-adjuster): source"#;
    stage.refuses(&pod, wanted, adjust).await;

    stage.adjusts(move |name, adjust| match name {
        "vanished" => drop(adjust.add_mount(mount("/x", "bind", &here, &["rbind"]))),
        "bad-data" => drop(adjust.add_mount(mount("/x", "tmpfs", "tmpfs", &["size=none"]))),
        _ => {}
    });
    let vanished = pod.create("vanished", &["true"]).await;
    fs::remove_dir(&volume).expect("it is empty");
    // Only the kernel knows the options of a file system.
    let bad_data = pod.create("bad-data", &["true"]).await;
    for (container, cause) in [
        (vanished, "not there any more"),
        (bad_data, "mount /x (set"),
    ] {
        let error = container.start().await.expect_err("it cannot start");
        let text = error.message();
        let reported = text.contains("mount /x (set by 10-adjuster): ") && text.contains(cause);
        assert!(reported, "{text}");
        let status = container.status().await;
        assert!(status.message.contains("set by 10-adjuster"), "{status:?}");
    }
    pod.end().await;
}

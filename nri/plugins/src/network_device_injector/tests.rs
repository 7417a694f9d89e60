use std::{
    io::Read,
    process::{Child, Command, Stdio},
};

use futures_util::TryStreamExt;

use super::*;

fn device(name: &str, new_name: &str, address: &str, prefix: Option<u8>) -> Device {
    Device {
        name: name.into(),
        new_name: new_name.into(),
        address: address.into(),
        prefix,
        mtu: None,
    }
}

#[test]
fn what_is_left_out_is_completed_and_nonsense_is_refused() {
    let moves = check(vec![
        device("eth7", "", "10.0.0.1", None),
        device("eth8", "net0", "fd00::1", Some(64)),
    ]);
    let moves = moves.expect("both are fine");
    assert_eq!(moves[0].new_name, "eth7");
    assert_eq!(moves[0].address.map(|(_, prefix)| prefix), Some(32));
    assert_eq!(moves[1].address.map(|(_, prefix)| prefix), Some(64));
    for bad in [
        device("", "", "", None),
        device("a/b", "", "", None),
        device("..", "", "", None),
        device("eth0", "a-name-that-is-too-long", "", None),
        device("eth0", "", "10.0.0", None),
        device("eth0", "", "10.0.0.1", Some(33)),
    ] {
        assert!(check(vec![bad.clone()]).is_err(), "{bad:?}");
    }
    let twice = vec![device("a", "x", "", None), device("b", "x", "", None)];
    assert!(check(twice).is_err());
}

/// A network namespace that lives as long as this.
struct Netns(Child, OwnedFd);

impl Netns {
    /// `None` if the test has no permission to create one.
    fn new() -> Option<Self> {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut ready = [0];
        let stdout = child.stdout.as_mut().expect("piped");
        if stdout.read_exact(&mut ready).is_err() {
            let _ = child.wait();
            return None;
        }
        let fd = open(&format!("/proc/{}/ns/net", child.id())).expect("it is there");
        Some(Self(child, fd))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One end of a pair; the other, `p<name>`, stays in its namespace.
async fn add_link(netns: &OwnedFd, name: &'static str) {
    let added = within(netns, async move |links| {
        let pair = rtnetlink::LinkVeth::new(name, &format!("p{name}")).build();
        let added = links.0.link().add(pair).execute().await;
        added.map_err(|e| e.to_string())
    });
    added.await.expect("a pair of interfaces");
}

async fn names(netns: &OwnedFd) -> Vec<String> {
    let names = within(netns, async |links| {
        let all = links.0.link().get().execute().try_collect::<Vec<_>>().await;
        let all = all.map_err(|e| e.to_string())?;
        Ok(all
            .iter()
            .filter_map(name_of)
            .filter(|name| name != "lo" && !name.starts_with('p'))
            .collect())
    });
    names.await.expect("a list")
}

/// Skipped unless it runs as root.
#[tokio::test]
async fn interfaces_move_into_the_pod_and_back() {
    let (Some(host), Some(pod)) = (Netns::new(), Netns::new()) else {
        return;
    };
    add_link(&host.1, "nritest0").await;
    add_link(&host.1, "nritest1").await;
    let moves = check(vec![
        Device {
            mtu: Some(1300),
            ..device("nritest0", "net0", "10.9.8.7", Some(24))
        },
        device("nritest1", "", "fd00::7", None),
    ]);
    let moves = moves.expect("both are fine");
    inject(&host.1, &pod.1, &moves)
        .await
        .expect("both are there");
    assert_eq!(names(&host.1).await, Vec::<String>::new());
    assert_eq!(names(&pod.1).await, ["net0", "nritest1"]);
    let seen = within(&pod.1, async |links| {
        let link = links.find("net0").await?.ok_or("it is there")?;
        let addresses = links
            .0
            .address()
            .get()
            .set_link_index_filter(link.header.index);
        let addresses = addresses.execute().try_collect::<Vec<_>>().await;
        let addresses = addresses.map_err(|e| e.to_string())?;
        Ok((format!("{:?}", link.attributes), format!("{addresses:?}")))
    });
    let (link, addresses) = seen.await.expect("it is there");
    assert!(
        link.contains("Mtu(1300)") && link.contains("IfAlias(\"nritest0\")"),
        "{link}"
    );
    assert!(addresses.contains("10.9.8.7"), "{addresses}");

    release(&host.1, &pod.1, &moves)
        .await
        .expect("both come back");
    let mut back = names(&host.1).await;
    back.sort();
    assert_eq!(back, ["nritest0", "nritest1"]);
    assert_eq!(names(&pod.1).await, Vec::<String>::new());
    release(&host.1, &pod.1, &moves)
        .await
        .expect("a second time finds nothing");
}

/// Skipped unless it runs as root.
#[tokio::test]
async fn if_one_interface_fails_all_are_moved_back() {
    let (Some(host), Some(pod)) = (Netns::new(), Netns::new()) else {
        return;
    };
    add_link(&host.1, "nritest0").await;
    add_link(&host.1, "nritest1").await;
    add_link(&pod.1, "taken").await;
    let moves = check(vec![
        device("nritest0", "", "", None),
        device("nritest1", "taken", "", None),
    ]);
    let error = inject(&host.1, &pod.1, &moves.expect("both are fine")).await;
    let error = error.expect_err("the name is taken");
    assert!(error.contains("interface nritest1"), "{error}");
    let mut back = names(&host.1).await;
    back.sort();
    assert_eq!(back, ["nritest0", "nritest1"]);
    assert_eq!(names(&pod.1).await, ["taken"]);
}

//! The inventory of a daemon's resources, to find leftovers.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use testkit::look;

use super::Daemon;
use crate::bins;

/// The owner of a lease that a killed host-local had not written: no call of a runtime releases it.
pub const NOBODY: &str = "nobody";

impl Daemon {
    /// All resources of this daemon now: compare two inventories to find leftovers. Take the first
    /// after a pod came and went, so that both contain everything that is made once.
    ///
    /// # Panics
    /// If the monitor of a removed container does not end.
    pub async fn inventory(&self) -> BTreeSet<String> {
        // These monitors end without a waiting process; counted here, they would be missing later.
        testkit::until("the monitors of removed containers have ended", || async {
            (!look::works_nowhere(self.yard.pid(), "cairn-monitor")).then_some(())
        })
        .await;
        self.look_around().await
    }

    async fn look_around(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut add = |kind: &str, what: BTreeSet<String>| {
            all.extend(what.into_iter().map(|w| format!("{kind} {w}")));
        };
        add("mount", look::mounts(self.yard.pid()));
        add("process", look::processes(self.yard.pid()));
        for dir in look::cgroup_dirs(&self.cgroup_parent) {
            add(
                &format!("cgroup {}", dir.display()),
                look::tree(&dir)
                    .into_iter()
                    .filter(|p| Path::new(p).extension().is_none() && !p.contains('.'))
                    .collect(),
            );
        }
        for part in ["state", "root"] {
            // Through the yard, where it may be a separate file system.
            let seen = look::tree(&self.yard.inside(self.path(part)));
            add(
                part,
                seen.into_iter()
                    .filter(|p| !p.starts_with("trace"))
                    .collect(),
            );
        }
        add("lease", self.leases());
        add(
            "link",
            self.lines(&["ip", "-o", "-br", "link"])
                .await
                .into_iter()
                .map(|l| l.split_whitespace().next().unwrap_or_default().to_owned())
                .collect(),
        );
        if bins::system("nft").is_some() {
            // Without the values of counters.
            let list = ["nft", "--stateless", "list", "ruleset"];
            add("nft", self.lines(&list).await);
        }
        all
    }

    /// The leases of host-local, with their sandboxes.
    fn leases(&self) -> BTreeSet<String> {
        let dir = self.path("leases");
        let names = look::tree(&dir).into_iter();
        let names = names.filter(|p| !p.ends_with("last_reserved_ip.0") && !p.ends_with("lock"));
        let owned = |name: String| {
            let lease = fs::read_to_string(dir.join(&name)).ok()?;
            let owner = lease.lines().next().unwrap_or(NOBODY);
            Some(format!("{name} of {owner}"))
        };
        names.filter_map(owned).collect()
    }

    /// Waits until no item is new. A short clean-up in the background is permitted, a leftover is
    /// not.
    ///
    /// # Panics
    /// With leftovers and missing items.
    pub async fn leaves_only(&self, before: &BTreeSet<String>) {
        let (left, missing) = self.changed_since(before, Duration::from_secs(10)).await;
        assert!(
            left.is_empty() && missing.is_empty(),
            "left behind: {left:?}; missing: {missing:?}"
        );
    }

    /// New and missing items, as soon as there are none or after `patience`.
    pub async fn changed_since(
        &self,
        before: &BTreeSet<String>,
        patience: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let deadline = Instant::now() + patience;
        loop {
            let now = self.look_around().await;
            let left: Vec<_> = now.difference(before).cloned().collect();
            // Items that were being removed at the time of `before` may be missing.
            let missing = before
                .difference(&now)
                .filter(|m| !m.contains("images/trash"));
            let missing: Vec<_> = missing.cloned().collect();
            if (left.is_empty() && missing.is_empty()) || Instant::now() >= deadline {
                return (left, missing);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The output lines of a command in the yard.
    pub async fn lines(&self, argv: &[&str]) -> BTreeSet<String> {
        let (program, args) = argv.split_first().expect("a command");
        let output = self.yard.command(program).args(args).output().await;
        let output = output.expect("nsenter runs");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|l| l.trim().to_owned())
            .collect()
    }
}

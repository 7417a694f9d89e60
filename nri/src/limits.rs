//! Bounds of plugins that connect, so that they exhaust neither the open files of the process nor
//! each other's places. A place is taken at registration and returned when the connection has
//! ended. Launched plugins take none: the administrator controls their number.
//!
//! | places of | at most |
//! |---|---|
//! | one index and name | 16: the called one, 8 in its shadow, and those that wait to join |
//! | all users | 1024, or an eighth of the limit of open files |
//! | all users except root and our own | three quarters of that |
//! | one of those users | a quarter of that |
//!
//! A plugin named in the settings is bound by the first row only: no other plugin can exclude it.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rustix::process::{Resource, geteuid, getrlimit};
use tokio::sync::Semaphore;

use crate::{pace::Pace, peer_identity, plugin_id::PluginId};

/// Connections of one index and name.
const OF_ID: usize = 16;
/// Connections of plugins that the settings do not name.
const IN_ALL: usize = 1024;
/// Unregistered connections of one user (NRI-104): no user can exclude another.
const UNREGISTERED: usize = 64;
/// Each connection costs two descriptors: its socket and its process. So places take at most a
/// quarter of all descriptors, and unregistered connections at most an eighth.
const FILES_PER_PLACE: u64 = 8;
const FILES_PER_UNREGISTERED: u64 = 16;

/// A part of the current limit of open files.
fn part_of_open_files(part: u64) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / part).unwrap_or(usize::MAX)
}

/// Unregistered connections allowed per user, for this number of users.
pub(crate) fn unregistered_of_one(users: usize) -> usize {
    let all = part_of_open_files(FILES_PER_UNREGISTERED);
    (all / users.max(1)).clamp(1, UNREGISTERED)
}

/// Bounds of what plugins may ask of the runtime.
pub(crate) struct Admission {
    pub(crate) limits: Arc<Limits>,
    pub(crate) pace: Pace<PluginId>,
    /// Of the programs of plugins that connect.
    pub(crate) lookups: Arc<Semaphore>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            limits: Arc::default(),
            pace: Pace::of_updates(),
            lookups: peer_identity::lookups(),
        }
    }
}

#[derive(Default)]
struct Taken {
    of_id: BTreeMap<PluginId, usize>,
    /// Of plugins that the settings do not name.
    of_user: BTreeMap<u32, usize>,
}

/// The places of connected plugins, and their owners.
#[derive(Default)]
pub(crate) struct Limits(Mutex<Taken>);

impl Limits {
    /// A place for a plugin of this user; `named` if the settings name it.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(crate) fn take(
        self: &Arc<Self>,
        id: &PluginId,
        uid: u32,
        named: bool,
    ) -> Result<Permit, String> {
        let in_all = part_of_open_files(FILES_PER_PLACE).clamp(1, IN_ALL);
        let mut taken = self.0.lock();
        let of_id = taken.of_id.get(id).copied().unwrap_or_default();
        if of_id >= OF_ID {
            return Err(format!("{OF_ID} instances of {id} are connected"));
        }
        if !named {
            taken.has_room(uid, in_all)?;
        }
        *taken.of_id.entry(id.clone()).or_default() += 1;
        if !named {
            *taken.of_user.entry(uid).or_default() += 1;
        }
        Ok(Permit {
            limits: self.clone(),
            id: id.clone(),
            uid: (!named).then_some(uid),
        })
    }
}

impl Taken {
    fn has_room(&self, uid: u32, in_all: usize) -> Result<(), String> {
        if self.of_user.values().sum::<usize>() >= in_all {
            return Err(format!("{in_all} plugins are connected"));
        }
        if is_privileged(uid) {
            return Ok(());
        }
        let of_one = in_all.div_ceil(4);
        if self.of_user.get(&uid).is_some_and(|own| *own >= of_one) {
            return Err(format!("{of_one} plugins of user {uid} are connected"));
        }
        let of_others = in_all - in_all / 4;
        let others = self.of_user.iter().filter(|(uid, _)| !is_privileged(**uid));
        if others.map(|(_, count)| count).sum::<usize>() >= of_others {
            return Err(format!("{of_others} plugins of users are connected"));
        }
        Ok(())
    }
}

fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The place of one plugin; dropping it gives it back.
pub(crate) struct Permit {
    limits: Arc<Limits>,
    id: PluginId,
    uid: Option<u32>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.limits.0.lock();
        give_back(&mut taken.of_id, &self.id);
        if let Some(uid) = &self.uid {
            give_back(&mut taken.of_user, uid);
        }
    }
}

fn give_back<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 4_000_000_000;

    fn id(name: usize) -> PluginId {
        format!("10-a{name}").parse().unwrap()
    }

    /// Takes places of different plugins until none is left.
    fn fill(limits: &Arc<Limits>, uid: u32, from: usize) -> (Vec<Permit>, String) {
        let mut taken = Vec::new();
        loop {
            match limits.take(&id(from + taken.len()), uid, false) {
                Ok(place) => taken.push(place),
                Err(why) => return (taken, why),
            }
        }
    }

    #[test]
    fn no_user_keeps_another_out_and_all_of_them_not_root() {
        let limits = Arc::<Limits>::default();
        let in_all = part_of_open_files(FILES_PER_PLACE).min(IN_ALL);
        let mut users = Vec::new();
        for user in 0..3 {
            let (taken, why) = fill(&limits, USER + user, users.len() * in_all);
            assert_eq!(taken.len(), in_all / 4);
            assert!(why.contains(&format!("of user {}", USER + user)), "{why}");
            users.push(taken);
        }
        let (more, why) = fill(&limits, USER + 3, 10 * in_all);
        assert_eq!((more.len(), why.contains("of users")), (0, true), "{why}");
        let (root, why) = fill(&limits, 0, 20 * in_all);
        assert_eq!(root.len(), in_all - 3 * (in_all / 4));
        assert!(why.contains("plugins are connected"), "{why}");
        let named = limits.take(&id(30 * in_all), USER, true);
        assert!(named.is_ok(), "a plugin with a table is never kept out");
        drop((users, root, named));
        assert!(limits.0.lock().of_id.is_empty() && limits.0.lock().of_user.is_empty());
    }

    #[test]
    fn an_id_has_sixteen_places_also_where_the_settings_name_it() {
        for named in [false, true] {
            let limits = Arc::<Limits>::default();
            let mut taken: Vec<_> = (0..OF_ID)
                .map(|_| limits.take(&id(0), 0, named).unwrap())
                .collect();
            let why = limits.take(&id(0), 0, named).err().unwrap();
            assert_eq!(why, "16 instances of 10-a0 are connected");
            taken.pop();
            assert!(limits.take(&id(0), 0, named).is_ok());
        }
    }

    #[test]
    fn connections_without_a_registration_share_a_sixteenth_of_the_open_files() {
        let all = part_of_open_files(FILES_PER_UNREGISTERED);
        assert_eq!(unregistered_of_one(1), all.min(UNREGISTERED));
        assert_eq!(unregistered_of_one(all + 1), 1);
    }
}

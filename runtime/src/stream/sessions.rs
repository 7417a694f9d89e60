//! Concurrent sessions, bounded per pod and in total: one pod cannot take all of them.

use std::{collections::HashMap, sync::Arc};

use hyper::StatusCode;
use parking_lot::Mutex;

use super::wire::handshake::Refusal;

const OF_A_POD: usize = 64;
const IN_ALL: usize = 1024;

/// The number of sessions per pod.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, usize>>);

impl Sessions {
    /// Counts one more session of this pod.
    ///
    /// # Errors
    /// Too many requests, with the bound that was reached.
    pub(super) fn begin(self: &Arc<Self>, pod: &str) -> Result<Session, Refusal> {
        let mut counts = self.0.lock();
        let all: usize = counts.values().sum();
        let of_pod = counts.get(pod).copied().unwrap_or(0);
        let refuse = |text| Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
        if of_pod >= OF_A_POD {
            return refuse(format!(
                "sandbox {pod:?}: {of_pod} streaming sessions are open, the most of one pod: end one \
                 and try again"
            ));
        }
        if all >= IN_ALL {
            return refuse(format!(
                "{all} streaming sessions are open, the most of all pods: end one and try again"
            ));
        }
        counts.insert(pod.to_owned(), of_pod + 1);
        Ok(Session {
            sessions: Arc::clone(self),
            pod: pod.to_owned(),
        })
    }
}

/// Counts as open while it exists.
pub(super) struct Session {
    sessions: Arc<Sessions>,
    pod: String,
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut counts = self.sessions.0.lock();
        if let Some(count) = counts.get_mut(&self.pod) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sessions: &Arc<Sessions>, pod: &str) -> Refusal {
        let begun = sessions.begin(pod);
        begun.err().unwrap_or_else(|| panic!("{pod} has one more"))
    }

    #[test]
    fn sessions_are_bounded_for_each_pod_and_in_all() {
        let sessions = Arc::<Sessions>::default();
        let begin = |pod: &str| sessions.begin(pod).expect("there is room");
        let mut open: Vec<_> = (0..OF_A_POD).map(|_| begin("full")).collect();
        let refusal = refused(&sessions, "full");
        assert_eq!(refusal.code, StatusCode::TOO_MANY_REQUESTS);
        assert!(refusal.text.contains("64") && refusal.text.contains("\"full\""));
        drop(open.pop());
        open.push(begin("full"));
        open.extend((OF_A_POD..IN_ALL).map(|n| begin(&format!("pod-{}", n / OF_A_POD))));
        assert!(refused(&sessions, "late").text.contains("1024"));
        drop(open);
        assert!(sessions.0.lock().is_empty());
    }
}

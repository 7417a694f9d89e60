//! One-time tokens: each stands for one request, for a minute.

use std::{collections::HashMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::{sync::Notify, time::Instant};

/// How long a token may be used.
const LIFETIME: Duration = Duration::from_secs(60);
/// Tokens that are not used yet.
pub(super) const OUTSTANDING: usize = 1000;

pub(super) struct Tokens<T> {
    outstanding: Mutex<HashMap<String, (Instant, T)>>,
    added: Notify,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self {
            outstanding: Mutex::default(),
            added: Notify::new(),
        }
    }
}

impl<T> Tokens<T> {
    /// A new token. `None` when too many are outstanding, or the kernel has no random bytes.
    pub(super) fn add(&self, value: T) -> Option<String> {
        let mut bytes = [0; 18];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
        if filled < bytes.len() {
            return None;
        }
        let token = URL_SAFE_NO_PAD.encode(bytes);
        let now = Instant::now();
        let mut outstanding = self.outstanding.lock();
        outstanding.retain(|_, (until, _)| *until > now);
        if outstanding.len() >= OUTSTANDING {
            return None;
        }
        outstanding.insert(token.clone(), (now + LIFETIME, value));
        self.added.notify_one();
        Some(token)
    }

    /// What a token stands for, if it fits, and what `begin` makes of it. It is used up then, but not where `begin` fails.
    pub(super) fn take<B, E>(
        &self,
        token: &str,
        fits: impl FnOnce(&T) -> bool,
        begin: impl FnOnce(&T) -> Result<B, E>,
    ) -> Option<Result<(T, B), E>> {
        let mut outstanding = self.outstanding.lock();
        let (until, value) = outstanding.get(token)?;
        if *until <= Instant::now() || !fits(value) {
            return None;
        }
        let begun = match begin(value) {
            Ok(begun) => begun,
            Err(error) => return Some(Err(error)),
        };
        let (_, value) = outstanding.remove(token)?;
        Some(Ok((value, begun)))
    }

    /// Lets go of what was not used in time. Runs until dropped.
    pub(super) async fn expire(&self) {
        loop {
            let first = self
                .outstanding
                .lock()
                .values()
                .map(|(until, _)| *until)
                .min();
            match first {
                None => self.added.notified().await,
                Some(until) => {
                    tokio::time::sleep_until(until).await;
                    let now = Instant::now();
                    self.outstanding.lock().retain(|_, (until, _)| *until > now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_used_once_and_within_its_minute() {
        let tokens = Tokens::default();
        let token = tokens.add(7).expect("a token");
        assert!(token.len() >= 22, "{token}");
        let ready = |_: &i32| Ok::<_, &str>(());
        assert_eq!(tokens.take(&token, |_| false, ready), None);
        let busy = |_: &i32| Err::<(), _>("try again");
        assert_eq!(tokens.take(&token, |_| true, busy), Some(Err("try again")));
        assert_eq!(tokens.take(&token, |_| true, ready), Some(Ok((7, ()))));
        assert_eq!(tokens.take(&token, |_| true, ready), None);
        let late = tokens.add(8).expect("a token");
        tokio::time::advance(LIFETIME).await;
        assert_eq!(tokens.take(&late, |_| true, ready), None);
    }

    #[tokio::test(start_paused = true)]
    async fn outstanding_tokens_are_bounded_and_expire_by_themselves() {
        let tokens = Tokens::default();
        for n in 0..OUTSTANDING {
            assert!(tokens.add(n).is_some());
        }
        assert_eq!(tokens.add(0), None);
        // The task never returns.
        let _ = tokio::time::timeout(LIFETIME * 2, tokens.expire()).await;
        assert!(tokens.outstanding.lock().is_empty());
        assert!(tokens.add(0).is_some());
    }
}

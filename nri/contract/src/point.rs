//! Points: their ids, their selection and their order.

use std::{future::Future, pin::Pin, sync::Arc};

use testkit::rng::Rng;

use crate::stage::Stage;
use testkit::verdict::Checked;

/// The cost of a point. Points run in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// Some calls, without waiting.
    Fast,
    /// Waits for the runtime's request timeout, or uses many objects.
    Slow,
    /// Kills and restarts the runtime.
    Restart,
}

type Body = Arc<dyn Fn(Arc<Stage>) -> Pin<Box<dyn Future<Output = Checked> + Send>> + Send + Sync>;

/// One check of a runtime.
#[derive(Clone)]
pub(crate) struct Point {
    /// `C-02.6/sent-once`: the guarantee in CONTRACT.md, and the name of the point.
    pub id: String,
    /// The required behaviour.
    pub title: String,
    pub cost: Cost,
    pub body: Body,
}

impl Point {
    pub(crate) fn new<F, Fut>(
        id: impl Into<String>,
        title: impl Into<String>,
        cost: Cost,
        body: F,
    ) -> Self
    where
        F: Fn(Arc<Stage>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Checked> + Send + 'static,
    {
        Self {
            id: id.into(),
            title: title.into(),
            cost,
            body: Arc::new(move |stage| Box::pin(body(stage))),
        }
    }

    /// Returns the guarantee of the point.
    pub(crate) fn guarantee(&self) -> &str {
        self.id.split('/').next().unwrap_or(&self.id)
    }
}

/// Rows of points: id, required behaviour, the function that checks it.
macro_rules! points {
    ($($cost:ident $id:literal $title:literal $body:path;)+) => {
        vec![$($crate::point::Point::new($id, $title, $crate::point::Cost::$cost,
            |stage: std::sync::Arc<$crate::stage::Stage>| async move { $body(&stage).await })),+]
    };
}
pub(crate) use points;

/// Whether a glob matches an id: `*` matches any text, a comma separates alternatives.
pub(crate) fn matches(globs: &str, id: &str) -> bool {
    fn glob(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| glob(rest, &text[n..])),
            Some((c, rest)) => text
                .split_first()
                .is_some_and(|(d, text)| c == d && glob(rest, text)),
        }
    }
    globs
        .split(',')
        .any(|pattern| glob(pattern.trim().as_bytes(), id.as_bytes()))
}

/// Shuffles by a seed.
pub(crate) fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut rng = Rng::of(seed);
    for n in (1..all.len()).rev() {
        all.swap(n, rng.index(n + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_stands_for_whole_ids() {
        assert!(matches("C-02.*", "C-02.6/sent-once"));
        assert!(!matches("C-02.*", "C-12.6/sent-once"));
        assert!(matches("G-01/x, C-0*/error", "C-02.8/error"));
        assert!(!matches("C-02.8", "C-02.8/error"));
        assert!(matches("*", "") && !matches("", "x"));
    }

    #[test]
    fn a_seed_gives_one_order_of_all() {
        let order = |seed| {
            let mut all: Vec<u32> = (0..100).collect();
            shuffle(&mut all, seed);
            all
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut sorted = order(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
}

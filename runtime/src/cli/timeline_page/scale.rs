//! Folds quiet times: a pod starts in milliseconds, and may then run for days.

/// Break points, as pairs of time and position, with linear positions in between. Both start at 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scale {
    pub breaks: Vec<(u64, u64)>,
    /// Indices of break points at which a folded quiet time starts.
    pub folds: Vec<usize>,
}

/// Gaps of this many microseconds or fewer are never folded.
const SHORT: u64 = 1000;

/// `busy`: begins and ends, by begin. Gaps longer than half of the busy time are folded, each to a
/// 25th of it, all together to at most a third. A chart of instants has no busy time: the median of
/// the gaps takes its place, and only longer gaps are folded.
pub(super) fn scale(busy: &[(u64, u64)], end: u64) -> Scale {
    let mut gaps = Vec::new();
    let mut until = 0;
    let mut length = 0;
    for (from, to) in busy {
        if *from > until {
            gaps.push((until, *from));
            until = *from;
        }
        length += to.saturating_sub(until);
        until = until.max(*to);
    }
    if end > until {
        gaps.push((until, end));
    }
    let mut lengths: Vec<u64> = gaps.iter().map(|(from, to)| to - from).collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    let (busy, short) = if length < SHORT {
        (length.max(median), median)
    } else {
        (length, length / 2)
    };
    gaps.retain(|(from, to)| to - from > short.max(SHORT));
    let folded = (busy / 25)
        .min(busy / 3 / (gaps.len() as u64).max(1))
        .max(1);
    let mut scale = Scale {
        breaks: vec![(0, 0)],
        folds: Vec::new(),
    };
    for (from, to) in gaps {
        scale.go_on(from);
        scale.folds.push(scale.breaks.len() - 1);
        let place = scale.last().1 + folded;
        scale.breaks.push((to, place));
    }
    // Never empty, so that divisions are safe.
    scale.go_on(end.max(scale.last().0 + 1));
    scale
}

impl Scale {
    fn last(&self) -> (u64, u64) {
        self.breaks.last().copied().unwrap_or((0, 0))
    }

    /// Extends the scale linearly to this time.
    fn go_on(&mut self, to: u64) {
        let (time, place) = self.last();
        if to > time {
            self.breaks.push((to, place + to - time));
        }
    }
}

//! The progress of a pull: a bar on a terminal, lines elsewhere.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::text::size;

/// Interval of lines.
const LINE: Duration = Duration::from_secs(2);
const BAR: &str = "{msg}  [{bar:30}]  {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const SPINNER: &str = "{msg}  {spinner} {bytes}";

/// On standard error; standard output is for the result.
pub(super) enum Shown {
    Bar(ProgressBar),
    Lines(Lines),
}

impl Shown {
    pub(super) fn of(image: String) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(Lines::new(image));
        }
        Self::Bar(ProgressBar::new_spinner().with_message(image))
    }

    /// `of`: the announced bytes so far; 0 if unknown.
    pub(super) fn show(&mut self, bytes: u64, of: u64) {
        match self {
            Self::Bar(bar) => {
                let template = if of == 0 { SPINNER } else { BAR };
                // Both are constants that a test has parsed.
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style.progress_chars("=> "));
                }
                // A layer that is sent again is counted again.
                bar.set_length(of.max(bytes));
                bar.set_position(bytes);
                bar.tick();
            }
            Self::Lines(lines) => {
                if let Some(line) = lines.next(bytes, of, Instant::now()) {
                    eprintln!("{line}");
                }
            }
        }
    }

    /// Removes the bar from the terminal.
    pub(super) fn end(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Decides which lines are printed. Pure.
pub(super) struct Lines {
    image: String,
    last: Option<(u64, Instant)>,
}

impl Lines {
    fn new(image: String) -> Self {
        Self { image, last: None }
    }

    /// A line if there is progress, and the last line is old enough.
    fn next(&mut self, bytes: u64, of: u64, now: Instant) -> Option<String> {
        let is_new = match self.last {
            None => bytes > 0,
            Some((reported, then)) => bytes != reported && now >= then + LINE,
        };
        if !is_new {
            return None;
        }
        self.last = Some((bytes, now));
        let of = match of {
            0 => String::new(),
            of => format!(" of {}", size(of)),
        };
        Some(format!("{}: {}{of}", self.image, size(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_valid() {
        for template in [BAR, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_line_is_told_when_something_came_and_not_too_often() {
        let mut lines = Lines::new("r/x:1".into());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(lines.next(0, 0, at(0)), None);
        let first = lines.next(1_500_000, 3_000_000, at(1));
        assert_eq!(first.as_deref(), Some("r/x:1: 1.5 MB of 3.0 MB"));
        assert_eq!(lines.next(2_000_000, 3_000_000, at(2)), None);
        assert_eq!(lines.next(1_500_000, 3_000_000, at(9)), None, "it stalls");
        let later = lines.next(2_500_000, 0, at(9));
        assert_eq!(later.as_deref(), Some("r/x:1: 2.5 MB"));
    }
}

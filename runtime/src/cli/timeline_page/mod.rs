//! The life of pods as one page for a browser: lanes over time, and the first failure. Pure: drawn
//! from events only, with the words of the text timeline, so that both show the same.
//!
//! ```text
//! events ─► build ─► thin ─► rows, causes, scale ─► html ─► one file: no network, no library
//! ```
//! The page contains its data as JSON, and a script that draws it. External text is always text
//! there, never markup.

mod build;
mod causes;
mod html;
mod model;
mod rows;
mod scale;
mod thin;

use crate::trace::Event;

pub use html::page;
pub use model::Chart;

/// Limit of events on a page; the most relevant are kept.
const MOST: usize = 20_000;
/// With more pods than this each starts folded.
const MANY: usize = 12;

/// The chart: lanes, their events, and failures.
pub fn chart<'a>(events: impl IntoIterator<Item = &'a Event>) -> Chart {
    chart_of(events, MOST)
}

fn chart_of<'a>(events: impl IntoIterator<Item = &'a Event>, most: usize) -> Chart {
    let mut built = build::build(events);
    let left_out = thin::thin(&mut built.items, most);
    let failures = causes::failures(&built.items);
    let mut chart = rows::arrange(built, failures, MANY);
    chart.left_out = left_out;
    chart
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

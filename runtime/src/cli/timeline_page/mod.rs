//! The life of pods as one page for a browser: lanes over time, and what failed first. Pure: drawn from events alone, with
//! the words of the text timeline, so that nothing is shown here that is not shown there.
//!
//! ```text
//! events ─► build ─► thin ─► rows, causes, scale ─► html ─► one file: no network, no library
//! ```
//! The page brings its data as JSON, and a script that draws it; whatever came from outside is text there, never
//! markup.

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

/// Most events of one page; the most telling are kept.
const MOST: usize = 20_000;
/// With more pods than these each begins folded.
const MANY: usize = 12;

/// Lanes, their events, and what failed.
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

//! A report as text lines, optionally in colour.

use std::fmt::Write as _;

use super::{Report, StepReport, short};
use crate::{changes::Change, differ::Difference};

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const DIM: &str = "2";
/// Column of a step's time.
const WIDTH: usize = 64;

/// Adds colours if true.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(pub bool);

impl Paint {
    fn as_(self, colour: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The complete report.
pub(crate) fn render(report: &Report, paint: Paint) -> String {
    let mut out = format!("{}\n", report.scenario);
    for (n, step) in report.steps.iter().enumerate() {
        render_step(&mut out, n + 1, step, paint);
    }
    if let Some(why) = &report.not_joined {
        let _ = writeln!(out, "{} {why}", paint.as_(RED, "not joined:"));
    }
    if !report.output.is_empty() {
        let _ = writeln!(out, "the plugin printed last:");
        for line in report.output.lines() {
            let _ = writeln!(out, "  {}", paint.as_(DIM, line));
        }
    }
    for (event, latency) in &report.latencies {
        let line = format!(
            "  {event:<28} {:>5} calls  p50 {:>8}  max {:>8}",
            latency.count,
            short(latency.p50),
            short(latency.max)
        );
        let _ = writeln!(out, "{}", paint.as_(DIM, line.trim_end()));
    }
    let _ = writeln!(out, "{}", verdict(report, paint));
    out
}

fn verdict(report: &Report, paint: Paint) -> String {
    let steps = report.steps.len();
    let failed = report.steps.iter().filter(|s| !s.held()).count();
    let findings: usize = report.steps.iter().map(|s| s.findings.len()).sum();
    match (report.held(), report.replayed) {
        (true, true) => format!("{} {steps} steps, as recorded", paint.as_(GREEN, "same:")),
        (true, false) => format!("{} {steps} steps", paint.as_(GREEN, "held:")),
        (false, _) if report.not_joined.is_some() => paint.as_(RED, "nothing was tried"),
        (false, replayed) => {
            let what = if replayed { "different:" } else { "failed:" };
            let what = paint.as_(RED, what);
            format!("{what} {failed} of {steps} steps, {findings} broken rules")
        }
    }
}

fn render_step(out: &mut String, n: usize, step: &StepReport, paint: Paint) {
    let (mark, colour) = match (step.held(), step.outcome) {
        _ if step.skipped.is_some() => ("skipped", YELLOW),
        (true, outcome) => (outcome.unwrap_or("ok"), GREEN),
        // The answer is unchanged, but breaks a rule.
        (false, None | Some("same")) => ("FAILED", RED),
        (false, Some(outcome)) => (outcome, RED),
    };
    let title = format!("{n:>3} {}", step.title);
    let took = short(step.took);
    let _ = writeln!(
        out,
        "{title:<WIDTH$} {took:>9}  {}",
        paint.as_(colour, mark)
    );
    for change in &step.changes {
        let _ = writeln!(out, "      {}", render_change(change, paint));
    }
    for difference in &step.differences {
        let _ = writeln!(out, "      {}", render_difference(difference, paint));
    }
    for note in step.skipped.iter().chain(&step.notes) {
        let _ = writeln!(out, "      {}", paint.as_(DIM, note));
    }
    for failure in &step.failures {
        let _ = writeln!(out, "      {} {failure}", paint.as_(RED, "!"));
    }
    for finding in &step.findings {
        let about = finding.rule.about();
        let name = paint.as_(RED, about.name);
        let _ = writeln!(out, "      {name}: {}", finding.what);
        let _ = writeln!(out, "        {}", paint.as_(DIM, about.remedy));
    }
    for finding in &step.allowed {
        let line = format!("allowed {}: {}", finding.rule, finding.what);
        let _ = writeln!(out, "      {}", paint.as_(DIM, &line));
    }
}

/// After the mark a line of TOML, which is valid in `expect` of a scenario.
fn render_change(change: &Change, paint: Paint) -> String {
    let mut comment = change.by.join(", ");
    if let (Some(before), Some(_)) = (&change.before, &change.after) {
        let _ = write!(comment, ", was {before}");
    }
    let (colour, line) = match (&change.before, &change.expect) {
        (Some(_), Some(now)) => (YELLOW, format!("~ {now}")),
        (None, Some(now)) => (GREEN, format!("+ {now}")),
        (Some(before), None) => (RED, format!("- {}: {before}", change.path)),
        (None, None) => (RED, format!("- {}", change.path)),
    };
    let comment = paint.as_(DIM, &format!("# {comment}"));
    format!("{} {comment}", paint.as_(colour, &line))
}

fn render_difference(difference: &Difference, paint: Paint) -> String {
    let Difference {
        path,
        recorded,
        now,
    } = difference;
    match (recorded, now) {
        (Some(recorded), Some(now)) => paint.as_(YELLOW, &format!("~ {path}: {recorded} -> {now}")),
        (None, Some(now)) => paint.as_(GREEN, &format!("+ {path}: {now}")),
        (Some(recorded), None) => paint.as_(RED, &format!("- {path}: {recorded}")),
        (None, None) => path.clone(),
    }
}

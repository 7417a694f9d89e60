//! Reports as XML for CI systems: a suite for each scenario, a case for each step.

use std::{fmt::Write as _, time::Duration};

use super::{Report, StepReport};

/// All reports as one document.
pub(crate) fn render(reports: &[Report]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for report in reports {
        suite(&mut out, report);
    }
    out.push_str("</testsuites>\n");
    out
}

fn suite(out: &mut String, report: &Report) {
    let name = escaped(&report.scenario);
    let joined = report.not_joined.is_none();
    let failed = report.steps.iter().filter(|s| !s.held()).count();
    let skipped = report.steps.iter().filter(|s| s.skipped.is_some()).count();
    let tests = report.steps.len() + usize::from(!joined);
    let took: Duration = report.steps.iter().map(|step| step.took).sum();
    let file = escaped(&report.file);
    let _ = writeln!(
        out,
        "  <testsuite name=\"{name}\" file=\"{file}\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{}\" \
         skipped=\"{skipped}\" time=\"{:.6}\">",
        usize::from(!joined),
        took.as_secs_f64()
    );
    if let Some(why) = &report.not_joined {
        let why = escaped(why);
        let _ = writeln!(
            out,
            "    <testcase classname=\"{name}\" name=\"join\" file=\"{file}\"><error message=\"{why}\"/></testcase>"
        );
    }
    for (n, step) in report.steps.iter().enumerate() {
        case(out, &name, &file, n + 1, step);
    }
    if !report.output.is_empty() {
        let output = escaped(&report.output);
        let _ = writeln!(out, "    <system-out>{output}</system-out>");
    }
    out.push_str("  </testsuite>\n");
}

fn case(out: &mut String, suite: &str, file: &str, n: usize, step: &StepReport) {
    let title = escaped(&step.title);
    let seconds = step.took.as_secs_f64();
    // The shutdown is in no line of the scenario.
    let line = match step.line {
        0 => String::new(),
        line => format!(" line=\"{line}\""),
    };
    let _ = write!(
        out,
        "    <testcase classname=\"{suite}\" name=\"{n} {title}\" file=\"{file}\"{line} time=\"{seconds:.6}\">"
    );
    if let Some(why) = &step.skipped {
        let _ = write!(out, "<skipped message=\"{}\"/>", escaped(why));
    }
    for failure in &step.failures {
        let _ = write!(out, "<failure message=\"{}\"/>", escaped(failure));
    }
    for difference in &step.differences {
        let or_nothing = |side: &Option<String>| escaped(side.as_deref().unwrap_or("nothing"));
        let (path, recorded) = (escaped(&difference.path), or_nothing(&difference.recorded));
        let _ = write!(
            out,
            "<failure type=\"difference\" message=\"{path}: recorded {recorded}, now {}\"/>",
            or_nothing(&difference.now)
        );
    }
    for finding in &step.findings {
        let what = escaped(&finding.what);
        let _ = write!(
            out,
            "<failure type=\"{}\" message=\"{what}\"/>",
            finding.rule
        );
    }
    out.push_str("</testcase>\n");
}

/// Escapes a text for an attribute; characters invalid in XML are left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Finding, Rule};

    #[test]
    fn a_failed_step_is_a_failed_case_and_its_text_is_escaped() {
        let step = StepReport {
            title: "create a/<b>".into(),
            line: 7,
            took: Duration::from_millis(1500),
            findings: vec![Finding::new(Rule::Conflict, "\"x\" & y")],
            ..Default::default()
        };
        let report = Report {
            scenario: "s".into(),
            file: "s.toml".into(),
            output: "panic: <nil>".into(),
            steps: vec![StepReport::default(), step],
            ..Default::default()
        };
        let xml = render(&[report]);
        assert!(
            xml.contains(
                "<testsuite name=\"s\" file=\"s.toml\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"1.500000\">"
            ),
            "{xml}"
        );
        assert!(
            xml.contains("<system-out>panic: &lt;nil&gt;</system-out>"),
            "{xml}"
        );
        let case = "name=\"2 create a/&lt;b&gt;\" file=\"s.toml\" line=\"7\" time=\"1.500000\"><failure type=\"conflict\" message=\"&quot;x&quot; &amp; y\"/>";
        assert!(xml.contains(case), "{xml}");
    }
}

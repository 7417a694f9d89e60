//! A report for people and for programs. Pure.

use serde_json::{Value, json};

use super::text::{self, clean, fold, with};
use crate::preflight::{Finding, Report, State};

/// No folding below this width.
const NARROW: usize = 40;

/// The table for people. `width` is the terminal's; `color` is for terminals only.
pub fn table(report: &Report, width: usize, color: bool) -> String {
    let verdict = match report.state() {
        State::Ok => "pods run, and have all that cairn can give them",
        State::Limited => "pods run, but for what the lines marked \"limited\" say",
        State::Fails => "no pod runs before what \"fails\" is put right",
    };
    format!(
        "cairn {} on Linux {}\n\n{}\n{}\n",
        report.version,
        report.kernel,
        lines(&report.findings, width, color),
        painted(verdict, report.state(), color),
    )
}

/// A line per finding, with its consequences below.
pub fn lines(findings: &[Finding], width: usize, color: bool) -> String {
    let what = findings.iter().map(|f| f.what.len()).max().unwrap_or(0);
    let indent = word(State::Limited).len() + 2 + what + 2;
    let room = width.saturating_sub(indent).max(NARROW);
    let mut text = String::new();
    for finding in findings {
        let state = format!("{:7}", word(finding.state));
        let mut found = fold(&clean(&finding.found), room, 0).into_iter();
        text.push_str(&format!(
            "{}  {:what$}  {}\n",
            painted(&state, finding.state, color),
            finding.what,
            found.next().unwrap_or_default(),
        ));
        let cost = fold(&clean(&finding.cost), room, 0);
        for line in found.chain(cost).filter(|line| !line.is_empty()) {
            text.push_str(&format!("{:indent$}{line}\n", ""));
        }
    }
    text
}

/// The JSON form.
pub fn json(report: &Report) -> Value {
    with(report, "state", json!(report.state()))
}

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Fails => "fails",
    }
}

/// Colors the text by its state, on a terminal.
pub fn painted(text: &str, state: State, color: bool) -> String {
    let code = match state {
        State::Ok => "32",
        State::Limited => "33",
        State::Fails => "31",
    };
    text::painted(code, text, color)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            version: "1.2.3",
            kernel: "6.1.0".to_owned(),
            findings,
            no_user_namespaces: None,
        }
    }

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let ok = Finding::ok("kernel", "Linux 6.1.0");
        let limited = Finding::limited("cgroups", "v1", "kubelets refuse it");
        let fails = Finding::fails("nri", "taken", "choose another");
        let shown = |findings: &[&Finding]| {
            let report = report(findings.iter().map(|f| (*f).clone()).collect());
            (report.state(), table(&report, 80, false), json(&report))
        };
        for (findings, state, end) in [
            (vec![&ok], State::Ok, "all that cairn can give"),
            (vec![&limited, &ok], State::Limited, "limited"),
            (vec![&ok, &fails, &limited], State::Fails, "no pod runs"),
        ] {
            let (found, table, json) = shown(&findings);
            assert_eq!(found, state);
            assert!(
                table.lines().last().is_some_and(|line| line.contains(end)),
                "{table}"
            );
            assert_eq!(json["state"], word(state));
        }
    }

    #[test]
    fn what_it_costs_stands_below_what_was_found() {
        let cost = "pods without CNI get no network: load nf_tables, or give them a configuration";
        let report = report(vec![Finding::limited(
            "bridge",
            "no nftables\u{1b}[2J",
            cost,
        )]);
        let plain = table(&report, 50, false);
        assert!(plain.contains("limited  bridge  no nftables"), "{plain}");
        assert!(!plain.contains('\u{1b}'), "{plain}");
        let below: Vec<_> = plain.lines().skip(3).take(2).map(str::trim).collect();
        assert_eq!(below.join(" "), cost, "{plain}");
        assert!(table(&report, 50, true).contains("\x1b[33mlimited"));
    }
}

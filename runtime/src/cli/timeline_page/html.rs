//! The HTML file: a template, fixed contents as markup, and the rest as data for the script.
//!
//! Two measures keep external text from becoming markup. Text in markup is escaped, and data cannot
//! end its element; and the page's policy names the digests of its one style and its one script, so
//! that a browser runs and loads nothing else.

use std::{collections::HashMap, fmt::Write};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    model::{Chart, Item},
    scale::scale,
};
use crate::cli::{
    text::{cut, date},
    words::Tint,
};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script: the drawing of the chart, then its interaction.
const SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("draw.js"),
    include_str!("page.js"),
    "})();\n"
);
/// Total bytes of texts after which further ones are cut, and after which they are left out.
const CUT_FROM: usize = 600_000;
const NONE_FROM: usize = 1_100_000;
/// Length of a cut text, in characters.
const CUT: usize = 100;

/// Renders the complete page.
pub fn page(chart: &Chart) -> String {
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        digest(SCRIPT),
        digest(STYLE)
    );
    fill(
        TEMPLATE,
        &[
            ("policy", &policy),
            ("style", STYLE),
            ("script", SCRIPT),
            ("title", &escape(&title(chart))),
            ("summary", &escape(&summary(chart))),
            ("verdict", &verdict(chart)),
            ("data", &data(chart)),
        ],
    )
}

/// The digest of a script or a style in a policy.
fn digest(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// `template` with each `{{name}}` replaced. Inserted text is not expanded again.
fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("{{") {
        let (name, after) = behind.split_once("}}").unwrap_or((behind, ""));
        page += before;
        page += parts.iter().find(|(n, _)| *n == name).map_or("", |p| p.1);
        rest = after;
    }
    page + rest
}

/// Escapes text for an element or an attribute in double quotes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

/// JSON for a script element: it cannot end the element or begin a comment.
fn json_in_script(value: &Value) -> String {
    // In JSON these occur only in strings, which allow this escape.
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn title(chart: &Chart) -> String {
    let mut pods = chart.groups.iter().filter(|g| !g.id.is_empty());
    match (pods.next(), chart.pods()) {
        (Some(pod), 1) => pod.name.clone(),
        (_, 0) => "no pods".to_owned(),
        (_, pods) => format!("{pods} pods"),
    }
}

fn summary(chart: &Chart) -> String {
    let mut text = format!("from {}, {} long", date(chart.begun), long(chart.end()));
    if chart.left_out > 0 {
        let _ = write!(
            text,
            "; {} events are not drawn: cairn timeline POD has them",
            chart.left_out
        );
    }
    text
}

fn seconds(us: u64) -> String {
    format!("{}.{:03} s", us / 1_000_000, us / 1000 % 1000)
}

/// A duration for people: without milliseconds from a minute on.
fn long(us: u64) -> String {
    let s = us / 1_000_000;
    match s {
        0..60 => seconds(us),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// The summary at the top: the first failure and its cause, or that nothing failed.
fn verdict(chart: &Chart) -> String {
    let Some(first) = chart.failures.first() else {
        let warned = chart.items.iter().filter(|i| i.tint == Tint::Warn).count();
        let (class, mark, text) = match warned {
            0 => ("good", "\u{2713}", "Nothing failed.".to_owned()),
            1 => (
                "warn",
                "!",
                "Nothing failed; one event is worth a look.".to_owned(),
            ),
            n => (
                "warn",
                "!",
                format!("Nothing failed; {n} events are worth a look."),
            ),
        };
        return format!(
            "<div id=\"verdict\" class=\"{class}\" role=\"status\"><span class=\"mark\" aria-hidden=\"true\">{mark}</span>\
             <p>{text}</p></div>"
        );
    };
    let pod = &chart.groups[chart.items[first.cause].group].name;
    let of = if pod.is_empty() { "" } else { " in " };
    let more = match chart.failures.len() {
        1 => String::new(),
        n => format!("<button id=\"next\" type=\"button\">Next of {n} failures</button>"),
    };
    format!(
        "<div id=\"verdict\" class=\"bad\" role=\"alert\"><span class=\"mark\" aria-hidden=\"true\">\u{2717}</span>\
         <p><strong id=\"what\">{}{of}{}</strong> <span id=\"when\">at {}</span><span id=\"why\">{}</span></p>\
         <div><button id=\"show\" type=\"button\">Zoom to it</button>{more}</div></div>",
        escape(&first.what),
        escape(pod),
        seconds(first.at),
        escape(&first.why),
    )
}

/// Data for the script. An item is an array: group, lane, row, begin, length, tint, label, request,
/// answer, container with its id, call, point or -1, whether it is open. Texts are indices.
fn data(chart: &Chart) -> String {
    let mut texts = Texts::default();
    let failures: Vec<Value> = chart
        .failures
        .iter()
        .map(|f| json!([f.cause, texts.index(&f.what), texts.index(&f.why), f.at]))
        .collect();
    // If texts are cut, those of failures stay complete.
    let mut order: Vec<usize> = (0..chart.items.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(tint(chart.items[*i].tint)));
    let mut items = vec![Value::Null; order.len()];
    for index in order {
        let item = &chart.items[index];
        let (lane, row) = chart.places[index];
        items[index] = json!([
            item.group,
            lane,
            row,
            item.at,
            item.took,
            tint(item.tint),
            texts.index(&item.label),
            texts.index(&item.asked),
            texts.index(&item.answer),
            texts.index(&container(item)),
            texts.index(&item.call),
            item.point.map_or(-1, |p| i64::try_from(p).unwrap_or(-1)),
            u8::from(item.open),
        ]);
    }
    let groups: Vec<Value> = chart
        .groups
        .iter()
        .zip(&chart.lanes)
        .map(|(group, lanes)| {
            let lanes: Vec<&str> = lanes.iter().map(super::model::Lane::name).collect();
            json!({ "name": group.name, "id": group.id, "lanes": lanes })
        })
        .collect();
    let busy: Vec<(u64, u64)> = chart
        .items
        .iter()
        // An unfinished item would make all the rest busy.
        .map(|i| (i.at, if i.open { i.at } else { i.end() }))
        .collect();
    let scale = scale(&busy, chart.end());
    json_in_script(&json!({
        "begun": chart.begun / 1_000_000,
        "many": chart.many,
        "breaks": scale.breaks,
        "folds": scale.folds,
        "groups": groups,
        "failures": failures,
        "items": items,
        "texts": texts.all,
    }))
}

fn container(item: &Item) -> String {
    match &item.container {
        (id, name) if id.is_empty() => name.clone(),
        (id, name) => format!("{name}\n{id}"),
    }
}

fn tint(tint: Tint) -> u8 {
    match tint {
        Tint::Faint => 0,
        Tint::Plain | Tint::Strong => 1,
        Tint::Good => 2,
        Tint::Point => 3,
        Tint::Warn => 4,
        Tint::Bad => 5,
    }
}

/// Each text once, up to the limit of a page.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    known: HashMap<String, usize>,
    bytes: usize,
}

impl Texts {
    fn index(&mut self, text: &str) -> usize {
        let mut text = text.to_owned();
        if self.bytes > NONE_FROM {
            text = "\u{2026}".to_owned();
        } else if self.bytes > CUT_FROM {
            text = cut(&text, CUT);
        }
        if let Some(known) = self.known.get(&text) {
            return *known;
        }
        self.bytes += text.len();
        self.known.insert(text.clone(), self.all.len());
        self.all.push(text);
        self.all.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_into_a_template_is_not_looked_at_again() {
        let page = fill("<{{a}}|{{b}}|{{c}}>", &[("a", "{{b}}"), ("b", "x")]);
        assert_eq!(page, "<{{b}}|x|>");
    }

    #[test]
    fn lengths_are_for_people() {
        let second = 1_000_000;
        for (us, text) in [
            (63_025, "0.063 s"),
            (63 * second, "1 min 3 s"),
            (86_399 * second, "23 h 59 min"),
            (90_000 * second, "1 d 1 h"),
        ] {
            assert_eq!(long(us), text);
        }
    }

    #[test]
    fn text_in_markup_is_text() {
        let text = "<img src=x onerror='alert(1)'>&\"";
        assert_eq!(
            escape(text),
            "&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&amp;&quot;"
        );
    }

    #[test]
    fn data_cannot_end_the_element_it_stands_in_and_reads_as_it_was() {
        let value = json!(["</script><!--", "<script>", "a\u{2028}b\u{2029}&amp;\"\\"]);
        let text = json_in_script(&value);
        assert!(
            !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn too_many_texts_are_cut_and_then_left_out_but_the_first_stay_whole() {
        let mut texts = Texts::default();
        let long = |n: usize| format!("{n:07}{}", "x".repeat(1993));
        for n in 0..20_000 {
            texts.index(&long(n));
        }
        assert_eq!(texts.all[0], long(0));
        assert_eq!(texts.all.last().unwrap(), "\u{2026}");
        assert!(texts.bytes < NONE_FROM + 2000, "{}", texts.bytes);
    }
}

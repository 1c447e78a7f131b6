//! The page about a run: its timeline and what was found, in one file that needs no network and no script.

use std::fmt::Write as _;

use crate::legend;
use crate::plan::FaultKind;
use crate::report::Report;
use crate::text::escaped;
use crate::timeline::{LABELS, Timeline};
use crate::who::Who;

/// The page for `report`.
pub fn report_page(report: &Report) -> String {
    let mut out = String::new();
    let lines = report.lines();
    let timeline = Timeline::wide(report);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>tenure torture, seed {}</title><style>{}{STYLE}</style></head><body>\
         <h1>tenure torture</h1><p class=\"{}\">{}</p><p>{}</p><p>{}</p>",
        report.seed,
        legend::style(),
        legend::verdict_class(report),
        escaped(&report.verdict_text()),
        escaped(&lines[0]),
        escaped(&lines[1]),
    );
    if let Some(what) = &report.left_out {
        let _ = write!(out, "<p>Left out: {}.</p>", escaped(what));
    }
    legend(&mut out, report);
    drawing(&mut out, &timeline);
    details(&mut out, report);
    out += "</body></html>\n";
    out
}

/// The timeline: the names of the rows, which do not scroll, and the rows, which scroll. Over each bar lies an element
/// that shows the tooltip of the bar to the pointer and to the keyboard.
fn drawing(out: &mut String, timeline: &Timeline) {
    /// With less, tooltips open downwards.
    const MIN_HEIGHT: f64 = 240.0;
    let (width, height) = (timeline.width(), timeline.height());
    // Few rows leave no space for a tooltip.
    let below = if height < MIN_HEIGHT { "56px" } else { "0" };
    let _ = write!(
        out,
        "<a class=\"skip\" href=\"#after\">Skip the timeline</a>\
         <div class=\"scroll\" style=\"padding-bottom:{below}\" role=\"region\" aria-label=\"timeline\" tabindex=\"0\">\
         <svg class=\"rows\" aria-hidden=\"true\" width=\"{LABELS}\" height=\"{height}\">{}</svg>\
         <div class=\"lanes\" style=\"width:{width:.1}px;height:{height}px\">\
         <svg role=\"img\" aria-label=\"timeline\" width=\"{width:.1}\" height=\"{height}\">{}</svg>",
        timeline.row_labels(),
        timeline.svg,
    );
    for tooltip in &timeline.tooltips {
        /// A narrower element is hard to point at.
        const MIN_WIDTH: f64 = 4.0;
        let [x, y, width, tall] = tooltip.area;
        let (x, width) = match width < MIN_WIDTH {
            true => (x - (MIN_WIDTH - width) / 2.0, MIN_WIDTH),
            false => (x, width),
        };
        // The text opens towards the middle of the drawing, where there is space for it.
        let left = if x > timeline.width() / 2.0 { "l" } else { "" };
        let up = if y > height / 2.0 && y > MIN_HEIGHT / 2.0 {
            "u"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<b class=\"{left}{up}\" role=\"img\" tabindex=\"0\" \
             style=\"left:{x:.1}px;top:{y:.1}px;width:{width:.1}px;height:{tall:.1}px\" aria-label=\"{}\"></b>",
            escaped(&tooltip.text)
        );
    }
    *out += "</div></div><div id=\"after\"></div>";
}

fn legend(out: &mut String, report: &Report) {
    *out += "<ul class=\"legend\">";
    for (swatch, text) in legend::items(report) {
        let _ = write!(
            out,
            "<li><svg aria-hidden=\"true\" width=\"18\" height=\"12\">{swatch}</svg>{}",
            escaped(&text)
        );
    }
    *out += "</ul>";
}

/// The findings, one row each, up to a number that people read.
fn details(out: &mut String, report: &Report) {
    const MAX_ROWS: usize = 200;
    let rows = rows(report);
    if rows.is_empty() {
        return;
    }
    *out += "<table><tr><th>at</th><th>what</th><th>promise</th></tr>";
    for (at, what, why) in rows.iter().take(MAX_ROWS) {
        let _ = write!(
            out,
            "<tr><td>{at:.3} s</td><td>{}</td><td{}>{}</td></tr>",
            escaped(what),
            if why == NOT_DOCUMENTED {
                " class=\"broken\""
            } else {
                ""
            },
            escaped(why)
        );
    }
    *out += "</table>";
    if rows.len() > MAX_ROWS {
        let _ = write!(
            out,
            "<p>and {} more; all are in the events.</p>",
            rows.len() - MAX_ROWS
        );
    }
}

/// The text for a finding that is a violation.
const NOT_DOCUMENTED: &str = "NOT documented";

/// The second, the text and the promise of each finding, in the order of time.
fn rows(report: &Report) -> Vec<(f64, String, String)> {
    let began = report.history.began;
    let who = Who::of(&report.history);
    let found = &report.findings;
    let why = |documented: Option<FaultKind>| match documented {
        Some(kind) => format!("as documented for {kind}"),
        None => NOT_DOCUMENTED.to_owned(),
    };
    let time = |at: u64| at.saturating_sub(began) as f64 / 1e9;
    let mut rows = Vec::new();
    for it in &found.overlaps {
        let what = format!("{} both hold", who.both(it));
        rows.push((time(it.from), what, why(it.documented)));
    }
    let anomalies = [
        ("token not greater than an earlier one", &found.tokens),
        ("late write, without a fence", &found.writes.late),
        ("late write past the fence", &found.writes.late_accepted),
    ];
    for (what, anomalies) in anomalies {
        for it in anomalies {
            rows.push((time(it.at), what.to_owned(), why(it.documented)));
        }
    }
    for it in &found.observers {
        let what = format!("the observer of worker {} {}", it.worker, it.what.as_str());
        rows.push((time(it.at), what, why(it.documented)));
    }
    for (from, to) in &found.gaps {
        let what = format!(
            "no worker held for {:.1} s, although one waited",
            (to - from) as f64 / 1e9
        );
        rows.push((time(*from), what, why(None)));
    }
    let seen = report
        .history
        .store
        .outages
        .iter()
        .chain(&report.history.store.notices);
    for (at, what) in seen {
        rows.push((time(*at), what.clone(), "seen from outside".to_owned()));
    }
    rows.sort_by(|one, other| one.0.total_cmp(&other.0));
    rows
}

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem;color:var(--text);background:var(--back)}\
h1{font-size:1.2rem}p{margin:.3rem 0;overflow-wrap:anywhere}\
p.verdict{font-weight:600;padding:.4rem .7rem;border-left:6px solid}\
p.ok{border-color:var(--good)}p.bad{border-color:var(--bad)}p.few{border-color:var(--few)}\
.skip{position:absolute;left:-99rem}.skip:focus{position:static}\
.scroll{display:flex;overflow-x:auto;border:1px solid var(--line);margin:.6rem 0 1rem}\
.scroll svg{display:block}\
.rows{position:sticky;left:0;z-index:1;flex:none;background:var(--back)}.lanes{position:relative;flex:none}\
.lanes b{position:absolute}.lanes b:hover,.lanes b:focus{z-index:2;outline:2px solid var(--text);outline-offset:1px}\
.lanes b:hover::after,.lanes b:focus::after{content:attr(aria-label);position:absolute;left:0;top:calc(100% + 5px);\
width:max-content;max-width:24rem;padding:.25rem .5rem;border-radius:4px;pointer-events:none;\
font:13px/1.4 system-ui,sans-serif;overflow-wrap:anywhere;color:var(--back);background:var(--text)}\
.lanes b.l::after,.lanes b.lu::after{left:auto;right:0}\
.lanes b.u::after,.lanes b.lu::after{top:auto;bottom:calc(100% + 5px)}\
.legend{list-style:none;padding:0;margin:1rem 0 0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem}\
.legend li{overflow-wrap:anywhere}.legend svg{margin-right:.4rem;vertical-align:-1px;overflow:visible}\
table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.15rem .8rem .15rem 0;\
border-bottom:1px solid var(--line)}td{overflow-wrap:anywhere}td:first-child{white-space:nowrap}\
td.broken{color:var(--bad);font-weight:600}";

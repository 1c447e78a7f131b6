//! The drawing of a run: one file that needs no network and no script.

use std::fmt::Write as _;

use crate::checker::Verdict;
use crate::plan::Kind;
use crate::report::Report;

const ROW: u64 = 34;
const LEFT: u64 = 90;
const TOP: u64 = 26;
/// A drawing is not made wider than this; longer runs are drawn smaller.
const WIDEST: u64 = 30_000;

/// The page for `report`.
pub fn page(report: &Report) -> String {
    let mut out = String::new();
    let lines = report.lines();
    let class = match report.verdict() {
        Verdict::Ok => "ok",
        Verdict::Violation => "bad",
        Verdict::NotEnough => "few",
    };
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>tenure torture, seed {}</title><style>{STYLE}</style></head><body>\
         <h1>tenure torture</h1><p class=\"verdict {class}\">{}</p><p>{}</p><p>{}</p>",
        report.seed,
        escaped(&report.verdict_text()),
        escaped(&lines[0]),
        escaped(&lines[1]),
    );
    if let Some(what) = &report.left_out {
        let _ = write!(out, "<p>Left out: {}.</p>", escaped(what));
    }
    legend(&mut out, report);
    out += "<div class=\"scroll\">";
    drawing(&mut out, report);
    out += "</div>";
    details(&mut out, report);
    out += "</body></html>\n";
    out
}

/// What stands in a page as text and nothing else.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// Maps instants to the drawing.
struct Scale {
    began: u64,
    over: u64,
    per_second: f64,
}

impl Scale {
    fn x(&self, at: u64) -> f64 {
        let at = at.clamp(self.began, self.over);
        LEFT as f64 + (at - self.began) as f64 / 1e9 * self.per_second
    }

    /// Left edge and width, which is never too small to be seen.
    fn span(&self, from: u64, to: u64) -> (f64, f64) {
        let left = self.x(from);
        (left, (self.x(to) - left).max(1.0))
    }

    fn seconds(&self, at: u64) -> f64 {
        at.saturating_sub(self.began) as f64 / 1e9
    }
}

fn drawing(out: &mut String, report: &Report) {
    let history = &report.history;
    let seconds = report.seconds();
    let width = ((seconds * 60.0) as u64).clamp(900, WIDEST);
    let scale = Scale {
        began: history.began,
        over: history.over.max(history.began + 1),
        per_second: width as f64 / seconds.max(0.001),
    };
    let waits = history.waits.iter().map(|it| it.worker);
    let rows = waits.max().map_or(1, |most| most as u64 + 1);
    let height = TOP + rows * ROW;
    let _ = write!(
        out,
        "<svg role=\"img\" aria-label=\"timeline\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">",
        LEFT + width + 10,
        height + 10
    );
    // About one mark per 60 pixels, in whole seconds.
    let step = (60.0 / scale.per_second).ceil().max(1.0) as u64;
    for second in (0..=seconds as u64).step_by(step as usize) {
        let x = scale.x(history.began + second * 1_000_000_000);
        let _ = write!(
            out,
            "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>\
             <text x=\"{x:.1}\" y=\"16\">{second} s</text>"
        );
    }
    for row in 0..rows {
        let y = TOP + row * ROW + 21;
        let _ = write!(out, "<text x=\"4\" y=\"{y}\">worker {row}</text>");
    }
    for wait in &history.waits {
        let (x, width) = scale.span(wait.from, wait.to);
        let y = TOP + wait.worker as u64 * ROW + 16;
        let _ = write!(
            out,
            "<rect class=\"wait\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"2\"/>"
        );
    }
    let names = history.names();
    for claim in &history.claims {
        let (x, width) = scale.span(claim.start, claim.end);
        let y = TOP + claim.worker as u64 * ROW + 8;
        let color = names.iter().position(|name| *name == claim.name);
        let _ = write!(
            out,
            "<rect class=\"claim\" style=\"fill:hsl({} 55% 50%)\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"18\">\
             <title>worker {} holds {} from {:.3} s to {:.3} s, token {}</title></rect>",
            (210 + color.unwrap_or(0) * 77) % 360,
            claim.worker,
            escaped(&claim.name),
            scale.seconds(claim.start),
            scale.seconds(claim.end),
            claim.token,
        );
    }
    for trouble in &history.troubles {
        let (x, width) = scale.span(trouble.from, trouble.to);
        let (y, tall) = match trouble.worker {
            Some(worker) => (TOP + worker as u64 * ROW + 2, ROW - 4),
            None => (TOP, rows * ROW),
        };
        let _ = write!(
            out,
            "<rect class=\"fault {kind}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{tall}\">\
             <title>{kind} from {:.3} s to {:.3} s</title></rect>\
             <text class=\"small\" x=\"{:.1}\" y=\"{}\">{kind}</text>",
            scale.seconds(trouble.from),
            scale.seconds(trouble.to),
            x + 1.0,
            y + 7,
            kind = trouble.kind,
        );
    }
    for overlap in &report.findings.overlaps {
        let (x, width) = scale.span(overlap.from, overlap.to);
        let (low, high) = (
            overlap.first.1.min(overlap.second.1) as u64,
            overlap.first.1.max(overlap.second.1) as u64,
        );
        let y = TOP + low * ROW + 6;
        let _ = write!(
            out,
            "<rect class=\"overlap\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\">\
             <title>workers {} and {} both hold from {:.3} s to {:.3} s</title></rect>",
            width.max(3.0),
            (high - low) * ROW + 22,
            overlap.first.1,
            overlap.second.1,
            scale.seconds(overlap.from),
            scale.seconds(overlap.to),
        );
    }
    *out += "</svg>";
}

/// Only of what there was.
fn legend(out: &mut String, report: &Report) {
    *out += "<ul class=\"legend\"><li><i class=\"claim\"></i>holds, one colour per name\
             <li><i class=\"wait\"></i>waits<li><i class=\"overlap\"></i>two hold at once";
    let outage = (report.outages().0 > 0).then_some(Kind::Outage);
    let made = report.fault_counts().into_iter().map(|(kind, _)| kind);
    for kind in made.chain(outage) {
        let _ = write!(out, "<li><i class=\"fault {kind}\"></i>{kind}");
    }
    *out += "</ul>";
}

/// What was found, one row each, as far as somebody will read.
fn details(out: &mut String, report: &Report) {
    const MOST: usize = 200;
    let began = report.history.began;
    let found = &report.findings;
    let why = |documented: Option<Kind>| match documented {
        Some(kind) => format!("as documented for {kind}"),
        None => "NOT documented".to_owned(),
    };
    let time = |at: u64| at.saturating_sub(began) as f64 / 1e9;
    let mut rows = Vec::new();
    for it in &found.overlaps {
        let (first, second) = (it.first.1, it.second.1);
        let what = format!("workers {first} and {second} both hold");
        rows.push((time(it.from), what, why(it.documented)));
    }
    let slips = [
        ("token not greater than an earlier one", &found.tokens),
        ("late write, without a fence", &found.stale),
        ("late write past the fence", &found.stale_accepted),
    ];
    for (what, slips) in slips {
        for it in slips {
            rows.push((time(it.at), what.to_owned(), why(it.documented)));
        }
    }
    for (from, to) in &found.gaps {
        let what = format!(
            "nobody held for {:.1} s, while somebody waited",
            (to - from) as f64 / 1e9
        );
        rows.push((time(*from), what, why(None)));
    }
    let seen = report.history.outages.iter().chain(&report.history.notices);
    for (at, what) in seen {
        rows.push((time(*at), what.clone(), "seen from outside".to_owned()));
    }
    rows.sort_by(|one, other| one.0.total_cmp(&other.0));
    if rows.is_empty() {
        return;
    }
    *out += "<table><tr><th>at</th><th>what</th><th>promise</th></tr>";
    for (at, what, why) in rows.iter().take(MOST) {
        let _ = write!(
            out,
            "<tr><td>{at:.3} s</td><td>{}</td><td>{}</td></tr>",
            escaped(what),
            escaped(why)
        );
    }
    *out += "</table>";
    if rows.len() > MOST {
        let _ = write!(
            out,
            "<p>and {} more; all are in the events.</p>",
            rows.len() - MOST
        );
    }
}

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c1c1e;--back:#fff;--line:#ccd;--soft:#889}\
@media(prefers-color-scheme:dark){:root{--text:#e8e8ea;--back:#17171a;--line:#3a3a44;--soft:#889}}\
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem;color:var(--text);background:var(--back)}\
h1{font-size:1.2rem}p{margin:.3rem 0;overflow-wrap:anywhere}\
.verdict{font-weight:600;padding:.4rem .7rem;border-left:6px solid}\
.verdict.ok{border-color:#2a9d4a}.verdict.bad{border-color:#d22}.verdict.few{border-color:#c80}\
.scroll{overflow-x:auto;border:1px solid var(--line);margin:1rem 0}\
svg text{font:12px system-ui,sans-serif;fill:var(--text)}svg text.small{font-size:8px}\
.tick{stroke:var(--line)}.wait{fill:var(--soft);background:var(--soft);opacity:.5}\
.claim{background:hsl(210 55% 50%)}\
.overlap{fill:#e11;background:#e11;fill-opacity:.75;stroke:#900}\
.fault{fill-opacity:.28;stroke-width:1;stroke:var(--soft)}\
.pause{fill:#c80;background:#c80}.kill{fill:#000;background:#555;stroke:var(--text)}\
.delay{fill:#8a6;background:#8a6}.stall{fill:#0aa;background:#0aa}.cut{fill:#a0a;background:#a0a}\
.lost-reply{fill:#64d;background:#64d}.server-pause{fill:#c80;background:#c80}\
.server-kill,.leader-kill{fill:#000;background:#555}.leader-pause{fill:#c80;background:#c80}\
.outage{fill:#a40;background:#a40}.garbage{fill:#b35;background:#b35}.trickle{fill:#5ab;background:#5ab}\
.clock-forward,.clock-back,.client-clock{fill:#27c;background:#27c}\
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem}\
.legend i{display:inline-block;width:1rem;height:.7rem;margin-right:.35rem}\
table{border-collapse:collapse}td,th{text-align:left;padding:.15rem .8rem .15rem 0;border-bottom:1px solid var(--line)}";

//! What the colours of the timeline mean: the legend, the styles, and a colour and a pattern for each kind of fault.
//!
//! Faults differ in pattern where their colours look alike to a reader who does not tell red from green, so that
//! every reader can tell all kinds of faults apart.

use std::fmt::Write as _;

use crate::checker::Verdict;
use crate::plan::FaultKind;
use crate::report::Report;
use crate::text::{escaped, shortened, text_width};

/// The number of colours for names. With more names, some share a colour.
pub(crate) const NAME_COLORS: usize = 8;

/// The number of the colour for `name`.
pub(crate) fn color_of(names: &[&str], name: &str) -> usize {
    let index = names.iter().position(|other| *other == name);
    index.unwrap_or(0) % NAME_COLORS
}

/// How the area of a fault is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    Plain,
    Diagonal,
    Backward,
    Horizontal,
    Vertical,
    Grid,
    Dots,
}

/// The colour, as a variable of [`STYLE`], and the pattern for a kind of fault.
const fn style_of(kind: FaultKind) -> (&'static str, Pattern) {
    match kind {
        FaultKind::Kill => ("--text", Pattern::Plain),
        FaultKind::ServerKill => ("--text", Pattern::Diagonal),
        FaultKind::LeaderKill => ("--text", Pattern::Vertical),
        FaultKind::Cut => ("--green", Pattern::Backward),
        FaultKind::LostReply => ("--green", Pattern::Horizontal),
        FaultKind::Garbage => ("--green", Pattern::Dots),
        FaultKind::Pause => ("--orange", Pattern::Plain),
        FaultKind::ServerPause => ("--orange", Pattern::Diagonal),
        FaultKind::LeaderPause => ("--orange", Pattern::Vertical),
        FaultKind::Suspend => ("--orange", Pattern::Dots),
        FaultKind::ClockForward => ("--gold", Pattern::Backward),
        FaultKind::ClockBack => ("--gold", Pattern::Horizontal),
        FaultKind::ClientClock => ("--gold", Pattern::Grid),
        FaultKind::Delay => ("--sky", Pattern::Plain),
        FaultKind::Stall => ("--sky", Pattern::Diagonal),
        FaultKind::Trickle => ("--sky", Pattern::Dots),
        FaultKind::Vanish => ("--purple", Pattern::Grid),
        FaultKind::Outage => ("--purple", Pattern::Vertical),
    }
}

/// The fillings for these kinds, for `fill="url(#fault-KIND)"`.
pub(crate) fn patterns(kinds: impl Iterator<Item = FaultKind>) -> String {
    let mut kinds: Vec<_> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut out = String::from("<defs>");
    for kind in kinds {
        let shape = match style_of(kind).1 {
            Pattern::Plain => "",
            Pattern::Diagonal => "<path d=\"M-2 2L2 -2M0 8L8 0M6 10L10 6\"/>",
            Pattern::Backward => "<path d=\"M-2 6L2 10M0 0L8 8M6 -2L10 2\"/>",
            Pattern::Horizontal => "<path d=\"M0 2H8M0 6H8\"/>",
            Pattern::Grid => "<path d=\"M4 0V8M0 4H8\"/>",
            Pattern::Dots => {
                "<circle cx=\"2\" cy=\"2\" r=\"1.2\"/><circle cx=\"6\" cy=\"6\" r=\"1.2\"/>"
            }
            Pattern::Vertical => "<path d=\"M2 0V8M6 0V8\"/>",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<pattern id=\"fault-{kind}\" class=\"{kind}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\"/>{shape}</pattern>"
        );
    }
    out + "</defs>"
}

fn swatch(class: &str, y: u64, height: u64) -> String {
    format!("<rect class=\"{class}\" y=\"{y}\" width=\"18\" height=\"{height}\"/>")
}

/// What the colours of the workers' bars mean.
fn names(report: &Report) -> Vec<(String, String)> {
    let names = report.history.names();
    if names.len() < 2 {
        return vec![(swatch("hold n0", 0, 12), "holds".to_owned())];
    }
    let elections = report.history.election_names();
    let item = |name| {
        let does = match elections.contains(name) {
            true => "leads",
            false => "holds",
        };
        let color = color_of(&names, name);
        let text = format!("{does} {}", shortened(name));
        (swatch(&format!("hold n{color}"), 0, 12), text)
    };
    names.iter().map(item).collect()
}

/// Swatches of 18 by 12 pixels, as SVG, and their meaning. Only things that are in the drawing have a swatch.
pub(crate) fn items(report: &Report) -> Vec<(String, String)> {
    let mut items = names(report);
    items.push((swatch("wait", 3, 6), "waits".to_owned()));
    if !report.history.elections.observers.is_empty() {
        let sight = "<rect class=\"sight n0\" y=\"4\" width=\"18\" height=\"2.5\"/>\
                     <rect class=\"sight n1\" x=\"9\" y=\"4\" width=\"9\" height=\"2.5\"/>";
        items.push((
            sight.to_owned(),
            "sees who leads, in the colour of that worker".to_owned(),
        ));
        items.push((swatch("blind", 4, 3), "does not know who leads".to_owned()));
    }
    let overlaps = report.findings.overlaps.iter();
    let (documented, broken): (Vec<_>, Vec<_>) = overlaps.partition(|it| it.documented.is_some());
    let text = format!("two hold at once ({})", broken.len());
    items.push((swatch("overlap", 0, 12), text));
    if !documented.is_empty() {
        let text = format!("two hold at once, as documented ({})", documented.len());
        items.push((swatch("overlap documented", 0, 12), text));
    }
    let found = &report.findings;
    if !found.observers.is_empty() {
        let mark = "<rect class=\"late bad\" x=\"7\" y=\"2\" width=\"4\" height=\"8\"/>".to_owned();
        let text = format!("an observer was told wrong ({})", found.observers.len());
        items.push((mark, text));
    }
    let marks = found.writes.late.len() + found.writes.late_accepted.len() + found.tokens.len();
    if marks > 0 {
        let mark = "<rect class=\"late\" x=\"7\" y=\"2\" width=\"4\" height=\"8\"/>".to_owned();
        items.push((mark, format!("late write or old token ({marks})")));
    }
    if !found.gaps.is_empty() {
        let text = "no worker holds, although one waits".to_owned();
        items.push((swatch("gap", 4, 5), text));
    }
    let outages = report.outages().0;
    let outages = (outages > 0).then_some((FaultKind::Outage, outages));
    for (kind, count) in report.fault_counts().into_iter().chain(outages) {
        let cross = match kind {
            FaultKind::Kill => "<path class=\"cross\" d=\"M4 1l10 10m0 -10l-10 10\"/>",
            _ => "",
        };
        let fill = format!("fault {kind}\" fill=\"url(#fault-{kind})");
        let text = format!("{kind} ({count})");
        items.push((swatch(&fill, 0, 12) + cross, text));
    }
    items
}

/// The legend in lines of at most `width` pixels below `top`, and its height.
pub(crate) fn rows(report: &Report, width: f64, top: f64) -> (String, f64) {
    const LINE: f64 = 20.0;
    const LEFT: f64 = 12.0;
    let (mut x, mut line, mut out) = (LEFT, 0.0, String::new());
    for (swatch, text) in items(report) {
        let wanted = 24.0 + text_width(&text) + 12.0;
        if x > LEFT && x + wanted > width {
            (x, line) = (LEFT, line + 1.0);
        }
        let y = top + line * LINE;
        let _ = write!(
            out,
            "<g transform=\"translate({x:.1} {y:.1})\">{swatch}<text x=\"24\" y=\"10\">{}</text></g>",
            escaped(&text)
        );
        x += wanted;
    }
    (out, (line + 1.0) * LINE)
}

/// The class for the colour of the verdict.
pub(crate) fn verdict_class(report: &Report) -> &'static str {
    match report.verdict() {
        Verdict::Ok => "verdict ok",
        Verdict::Violation => "verdict bad",
        Verdict::NotEnough => "verdict few",
    }
}

/// Every kind that a run can have.
fn kinds() -> impl Iterator<Item = FaultKind> {
    FaultKind::ALL.into_iter().chain([FaultKind::Outage])
}

/// Colours for both schemes, and the look of the timeline: for the picture and for the page.
pub(crate) fn style() -> String {
    kinds().fold(STYLE.to_owned(), |mut style, kind| {
        let _ = write!(style, ".{kind}{{color:var({})}}", style_of(kind).0);
        style
    })
}

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c1c1e;--back:#fff;--line:#d9dbe2;--wait:#9097a3;--on:#fff;\
--good:#177a3b;--bad:#c1121f;--few:#8f5b00;\
--orange:#e08600;--sky:#3f9fdc;--green:#00936b;--purple:#b23c97;--gold:#a48c00;\
--n0:#0b66a8;--n1:#8a6a00;--n2:#34163f;--n3:#bd4593;--n4:#00755a;--n5:#4b52b8;--n6:#8a1c3b;--n7:#1f6f78}\
@media(prefers-color-scheme:dark){:root{--text:#e8e8ea;--back:#17171a;--line:#35353d;--wait:#7c828d;--on:#101014;\
--good:#4cc476;--bad:#ff6b6b;--few:#e0a83a;\
--orange:#f0a030;--sky:#69bdf2;--green:#35c79a;--purple:#e08fd0;--gold:#d8c23c;\
--n0:#5bb0f0;--n1:#e0bc45;--n2:#f4f0ff;--n3:#d673b4;--n4:#3fc79b;--n5:#9aa5ff;--n6:#f08a9e;--n7:#6fc5cf}}\
text{font:12px system-ui,sans-serif;fill:var(--text)}\
.headline{font-size:15px;font-weight:600}text.verdict{font-size:13px}\
text.ok{fill:var(--good)}text.bad{fill:var(--bad)}text.few{fill:var(--few)}\
.paper{fill:var(--back);stroke:var(--line)}.tick{stroke:var(--line)}.time,.token{text-anchor:middle}\
.token{fill:var(--on);font-size:11px}.wait{fill:var(--wait)}\
.label{font-size:11px;font-weight:600;paint-order:stroke;stroke:var(--back);stroke-width:3px;stroke-linejoin:round}\
.n0{fill:var(--n0)}.n1{fill:var(--n1)}.n2{fill:var(--n2)}.n3{fill:var(--n3)}\
.n4{fill:var(--n4)}.n5{fill:var(--n5)}.n6{fill:var(--n6)}.n7{fill:var(--n7)}\
pattern rect{fill:currentColor;fill-opacity:.22}pattern path{stroke:currentColor;stroke-width:1.6}\
pattern circle{fill:currentColor}.fault{stroke:currentColor;stroke-width:.8}.cap{fill:none;pointer-events:all}\
.cross{fill:none;stroke:var(--text);stroke-width:2.4}\
.overlap{fill:var(--bad);fill-opacity:.35;stroke:var(--bad);stroke-width:2.5}\
.late{fill:var(--back);stroke:var(--text);stroke-width:1.2}.late.bad{fill:var(--bad);stroke:var(--bad)}\
.overlap.documented{fill:none;stroke:var(--text);stroke-dasharray:4 3}.wide{fill-opacity:.5}.gap{fill:var(--bad)}\
.blind{fill:none;stroke:var(--text);stroke-width:.6;stroke-dasharray:2 2}";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Green looks like grey, gold like orange, and purple like blue.
    #[test]
    fn no_two_kinds_of_faults_look_alike_without_red_and_green() {
        let look = |kind| match style_of(kind) {
            ("--green", pattern) => ("--text", pattern),
            ("--gold", pattern) => ("--orange", pattern),
            ("--purple", pattern) => ("--sky", pattern),
            look => look,
        };
        let looks: HashSet<_> = kinds().map(look).collect();
        assert_eq!(looks.len(), kinds().count());
    }

    #[test]
    fn every_color_of_a_fault_is_known_in_both_schemes() {
        for kind in kinds() {
            let definition = format!("{}:#", style_of(kind).0);
            assert_eq!(STYLE.matches(&definition).count(), 2, "{kind}");
        }
    }
}

//! The timeline of a run, drawn as SVG: a row for each worker, bars for waits and holds, bands for faults.
//!
//! The page shows it under elements of HTML, which give each bar a tooltip. The picture is one SVG file that
//! stands alone: an `<img>` shows it without scripts, fonts or other files.

use std::fmt::Write as _;

use crate::history::{Claim, InjectedFault};
use crate::legend;
use crate::mode::HoldMode;
use crate::plan::FaultKind;
use crate::report::Report;
use crate::settings::task_of;
use crate::sights;
use crate::text::{escaped, shortened, text_width};
use crate::who::Who;

/// Height of a row, in pixels like all lengths here.
pub(crate) const ROW: f64 = 36.0;
/// Height of the time axis above the rows.
pub(crate) const AXIS: f64 = 24.0;
/// Space left and right of the rows: half of the widest label of the axis.
pub(crate) const EDGE: f64 = 24.0;
/// Width of the column with the names of the rows.
pub(crate) const LABELS: f64 = 84.0;
/// A drawing is not made wider than this; longer runs are drawn smaller.
const MAX_WIDTH: f64 = 30_000.0;
/// Width of the picture.
const PICTURE_WIDTH: f64 = 900.0;
/// Lines for labels in the row of the store.
const STORE_LINES: usize = 3;
/// The largest number of late writes and repeated tokens that are marked. The table of the page and the events have
/// all of them.
const MAX_MARKS: usize = 500;

/// The tooltip of a bar, and where the bar is.
pub(crate) struct Tooltip {
    /// Left, top, width and height.
    pub(crate) area: [f64; 4],
    pub(crate) text: String,
}

/// The drawing of a run.
pub(crate) struct Timeline<'a> {
    report: &'a Report,
    pixels_per_second: f64,
    names: Vec<&'a str>,
    who: Who,
    workers: usize,
    has_store_row: bool,
    /// Texts go into the SVG as `<title>`, else into `tooltips`.
    has_titles: bool,
    pub(crate) svg: String,
    pub(crate) tooltips: Vec<Tooltip>,
}

impl<'a> Timeline<'a> {
    /// A drawing that is wide enough for the labels of its faults, for a page that scrolls.
    pub(crate) fn wide(report: &'a Report) -> Self {
        let mut timeline = Self::new(report, false);
        let seconds = report.seconds().max(0.001);
        let least = (900.0 / seconds).max(60.0);
        let wanted = timeline.scale_for_labels().clamp(least, least.max(160.0));
        timeline.pixels_per_second = wanted.min(MAX_WIDTH / seconds);
        timeline.draw();
        timeline
    }

    fn new(report: &'a Report, has_titles: bool) -> Self {
        let history = &report.history;
        let waits = history.waits.iter().map(|wait| wait.worker);
        let claims = history.claims.iter().map(|claim| claim.worker);
        let troubled = history.faults.iter().filter_map(|it| it.worker);
        let observers = history.elections.observers.iter().map(|it| it.worker);
        let last = waits.chain(claims).chain(troubled).chain(observers).max();
        Self {
            report,
            pixels_per_second: 60.0,
            names: history.names(),
            who: Who::of(history),
            workers: last.map_or(1, |last| last + 1),
            has_store_row: history.faults.iter().any(|it| it.worker.is_none()),
            has_titles,
            svg: String::new(),
            tooltips: Vec::new(),
        }
    }

    /// The line for the label of each fault: a line for each worker, and some for the store, which take turns.
    fn label_lines(&self) -> Vec<usize> {
        let mut around = 0;
        let faults = self.report.history.faults.iter();
        let line = |fault: &InjectedFault| match fault.worker {
            Some(worker) => STORE_LINES + worker,
            None => {
                around += 1;
                around % STORE_LINES
            }
        };
        faults.map(line).collect()
    }

    /// Pixels per second with which no label of a fault runs into the next one of its line.
    fn scale_for_labels(&self) -> f64 {
        let mut previous = vec![None; STORE_LINES + self.workers];
        let mut scale: f64 = 0.0;
        let faults = self.report.history.faults.iter();
        for (fault, line) in faults.zip(self.label_lines()) {
            let label = (fault.from, text_width(fault.kind.as_str()) + 6.0);
            if let Some((from, width)) = previous[line].replace(label) {
                let between = fault.from.saturating_sub(from) as f64 / 1e9;
                scale = scale.max(width / between.max(0.001));
            }
        }
        scale
    }

    pub(crate) fn width(&self) -> f64 {
        self.report.seconds() * self.pixels_per_second + 2.0 * EDGE
    }

    pub(crate) fn height(&self) -> f64 {
        AXIS + (self.workers + usize::from(self.has_store_row)) as f64 * ROW + 2.0
    }

    /// The top of the row of a worker, or of the store.
    fn top(&self, worker: Option<usize>) -> f64 {
        let row = worker.map_or(0, |worker| worker + usize::from(self.has_store_row));
        AXIS + row as f64 * ROW
    }

    fn x(&self, at: u64) -> f64 {
        EDGE + self.seconds(at) * self.pixels_per_second
    }

    /// Left edge and width, which is never too small to be seen.
    fn span(&self, from: u64, to: u64) -> (f64, f64) {
        let left = self.x(from);
        (left, (self.x(to) - left).max(1.0))
    }

    /// Seconds since the run began.
    fn seconds(&self, at: u64) -> f64 {
        let history = &self.report.history;
        let last = history.over.max(history.began);
        (at.clamp(history.began, last) - history.began) as f64 / 1e9
    }

    /// The duration and the time of something: the end of every tooltip.
    fn times(&self, from: u64, to: u64) -> String {
        let (from, to) = (self.seconds(from), self.seconds(to));
        format!("{:.3} s, from {from:.3} s to {to:.3} s", to - from)
    }

    /// A rectangle and its tooltip.
    fn bar(&mut self, class: &str, area: [f64; 4], text: String) {
        let [x, y, width, height] = area;
        let _ = write!(
            self.svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\""
        );
        if self.has_titles {
            let _ = write!(self.svg, "><title>{}</title></rect>", escaped(&text));
        } else {
            self.svg += "/>";
            self.tooltips.push(Tooltip { area, text });
        }
    }

    fn draw(&mut self) {
        let kinds = self.report.history.faults.iter().map(|it| it.kind);
        self.svg += &legend::patterns(kinds);
        self.axis();
        for fault in &self.report.history.faults {
            self.fault(fault);
        }
        for wait in &self.report.history.waits {
            let (x, width) = self.span(wait.from, wait.to);
            let area = [x, self.top(Some(wait.worker)) + 20.0, width, 6.0];
            let who = self.who.task(wait.worker, wait.task);
            let name = shortened(&wait.name);
            let times = self.times(wait.from, wait.to);
            self.bar("wait", area, format!("{who} waits for {name}: {times}"));
        }
        for claim in &self.report.history.claims {
            self.hold(claim);
        }
        self.sights();
        self.kills();
        self.fault_labels();
        self.overlaps();
        self.marks();
        self.wrong_sights();
        self.gaps();
    }

    /// Time and rows.
    fn axis(&mut self) {
        const STEPS: [u64; 12] = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];
        let seconds = self.report.seconds();
        let wide = |step: &&u64| **step as f64 * self.pixels_per_second >= 60.0;
        let step = STEPS.iter().find(wide).copied();
        // Where an hour is narrower, days and weeks go in steps of their own.
        let step = step.unwrap_or_else(|| (60.0 / self.pixels_per_second).ceil().max(1.0) as u64);
        let (width, height) = (self.width(), self.height());
        for second in (0..=seconds as u64).step_by(step as usize) {
            let x = EDGE + second as f64 * self.pixels_per_second;
            let _ = write!(
                self.svg,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{AXIS}\" y2=\"{height}\"/>\
                 <text class=\"time\" x=\"{x:.1}\" y=\"16\">{second} s</text>"
            );
        }
        for row in 0..=self.workers + usize::from(self.has_store_row) {
            let y = AXIS + row as f64 * ROW;
            let _ = write!(
                self.svg,
                "<line class=\"tick\" x1=\"0\" x2=\"{width:.1}\" y1=\"{y}\" y2=\"{y}\"/>"
            );
        }
    }

    /// A band over the row of the worker that has the fault, or over all rows.
    fn fault(&mut self, fault: &InjectedFault) {
        let kind = fault.kind;
        let (x, width) = self.span(fault.from, fault.to);
        let top = self.top(fault.worker);
        let times = self.times(fault.from, fault.to);
        let text = match fault.worker {
            Some(worker) => format!("fault {kind} of worker {worker}: {times}"),
            None => format!("fault {kind}: {times}"),
        };
        let (height, wide) = match fault.worker {
            Some(_) => (ROW, ""),
            None => (self.height() - AXIS - 2.0, " wide"),
        };
        let width = width.max(2.0);
        let _ = write!(
            self.svg,
            "<rect class=\"fault {kind}{wide}\" fill=\"url(#fault-{kind})\" x=\"{x:.1}\" y=\"{top:.1}\" \
             width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
        // The bars of the workers lie on the rest of the band.
        self.bar(&format!("cap {kind}"), [x, top, width, 14.0], text);
    }

    /// Labels lie on all bands. A label that would run into the next one is left out: the tooltip says the same.
    fn fault_labels(&mut self) {
        let edge = self.width() - 1.0;
        let mut next = vec![edge; STORE_LINES + self.workers];
        let faults = self.report.history.faults.iter();
        for (fault, line) in faults.zip(self.label_lines()).rev() {
            let kind = fault.kind.as_str();
            let limit = &mut next[line];
            let begin = self.x(fault.from);
            // The last one of a line may start earlier than its band, so that it ends with the line.
            let start = match *limit < edge {
                true => begin + 3.0,
                false => (begin + 3.0).min(edge - text_width(kind)),
            };
            let fits = start + text_width(kind) <= *limit;
            *limit = start.min(begin);
            if fits {
                let below = if line < STORE_LINES {
                    line as f64 * 11.0
                } else {
                    0.0
                };
                let y = self.top(fault.worker) + 11.0 + below;
                let _ = write!(
                    self.svg,
                    "<text class=\"label\" x=\"{start:.1}\" y=\"{y:.1}\">{kind}</text>"
                );
            }
        }
    }

    fn hold(&mut self, claim: &Claim) {
        let (x, width) = self.span(claim.start, claim.end);
        let area = [x, self.top(Some(claim.worker)) + 15.0, width, 16.0];
        let color = legend::color_of(&self.names, &claim.name);
        let who = self.who.task(claim.worker, claim.task());
        let (token, name) = (claim.token, shortened(&claim.name));
        let times = self.times(claim.start, claim.end);
        let text = match claim.mode {
            HoldMode::Election => format!("{who} leads {name} with token {token}: {times}"),
            mode => format!("{who} holds {name}, {mode}, with token {token}: {times}"),
        };
        self.bar(&format!("hold n{color}"), area, text);
        let token = token.to_string();
        if text_width(&token) + 4.0 <= width {
            let (x, y) = (x + width / 2.0, area[1] + 12.0);
            let _ = write!(
                self.svg,
                "<text class=\"token\" x=\"{x:.1}\" y=\"{y:.1}\">{token}</text>"
            );
        }
    }

    /// A thin bar below the holds of a worker for each leader that its observers saw.
    fn sights(&mut self) {
        const HEIGHT: f64 = 2.5;
        for bar in sights::bars(&self.report.history) {
            let (x, width) = self.span(bar.from, bar.to);
            let top = self.top(Some(bar.worker)) + ROW - HEIGHT * (sights::LINES - bar.line) as f64;
            let text = format!("{}: {}", bar.text, self.times(bar.from, bar.to));
            self.bar(&bar.class, [x, top, width, HEIGHT], text);
        }
    }

    /// A cross where a process ended.
    fn kills(&mut self) {
        let killed = self.report.history.faults.iter();
        for fault in killed.filter(|it| it.kind == FaultKind::Kill) {
            let (x, y) = (self.x(fault.from), self.top(fault.worker) + 23.0);
            let _ = write!(
                self.svg,
                "<path class=\"cross\" d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\"/>",
                x - 5.0,
                y - 5.0
            );
        }
    }

    /// A frame around the rows of two workers that hold at once.
    fn overlaps(&mut self) {
        for overlap in &self.report.findings.overlaps {
            let (one, other) = (overlap.first.1, overlap.second.1);
            let (x, width) = self.span(overlap.from, overlap.to);
            let top = self.top(Some(one.min(other))) + 13.0;
            let bottom = self.top(Some(one.max(other))) + 33.0;
            let times = self.times(overlap.from, overlap.to);
            let both = self.who.both(overlap);
            let text = match overlap.documented {
                Some(kind) => format!("{both} both hold, as documented for {kind}: {times}"),
                None => format!("{both} both hold, NOT documented: {times}"),
            };
            let width = width.max(6.0);
            let class = match overlap.documented {
                Some(_) => "overlap documented",
                None => "overlap",
            };
            self.bar(class, [x - 1.0, top, width, bottom - top], text);
        }
    }

    /// Late writes and tokens that are not greater, each on the row of its worker.
    fn marks(&mut self) {
        let found = &self.report.findings;
        let anomalies = [
            ("token not greater than an earlier one", &found.tokens),
            ("late write, without a fence", &found.writes.late),
            ("late write past the fence", &found.writes.late_accepted),
        ];
        let anomalies = anomalies
            .iter()
            .flat_map(|(what, anomalies)| anomalies.iter().map(move |anomaly| (*what, anomaly)));
        for (what, anomaly) in anomalies.take(MAX_MARKS) {
            let claims = &self.report.history.claims;
            let claim = claims
                .iter()
                .find(|it| it.acquisition == anomaly.acquisition);
            let Some(worker) = claim.map(|claim| claim.worker) else {
                continue;
            };
            let (class, why) = match anomaly.documented {
                Some(kind) => ("late", format!("as documented for {kind}")),
                None => ("late bad", "NOT documented".to_owned()),
            };
            let text = format!(
                "{}: {what}, {why}: at {:.3} s",
                self.who.task(worker, task_of(anomaly.acquisition)),
                self.seconds(anomaly.at)
            );
            let area = [
                self.x(anomaly.at) - 2.0,
                self.top(Some(worker)) + 28.0,
                4.0,
                7.0,
            ];
            self.bar(class, area, text);
        }
    }

    /// What observers should not have been told, each on the row of its worker.
    fn wrong_sights(&mut self) {
        for found in self.report.findings.observers.iter().take(MAX_MARKS) {
            let (class, why) = match found.documented {
                Some(kind) => ("late", format!("as documented for {kind}")),
                None => ("late bad", "NOT documented".to_owned()),
            };
            let (worker, what) = (found.worker, found.what.as_str());
            let at = self.seconds(found.at);
            let text = format!("the observer of worker {worker} {what}, {why}: at {at:.3} s");
            let area = [
                self.x(found.at) - 2.0,
                self.top(Some(worker)) + 28.0,
                4.0,
                7.0,
            ];
            self.bar(class, area, text);
        }
    }

    fn gaps(&mut self) {
        for (from, to) in &self.report.findings.gaps {
            let (x, width) = self.span(*from, *to);
            let text = format!(
                "no worker holds, although one waits: {}",
                self.times(*from, *to)
            );
            self.bar("gap", [x, AXIS - 5.0, width, 5.0], text);
        }
    }

    /// The names of the rows, at the same heights.
    pub(crate) fn row_labels(&self) -> String {
        let mut out = String::new();
        let workers = (0..self.workers).map(|worker| (Some(worker), format!("worker {worker}")));
        let store = self.has_store_row.then(|| (None, "store".to_owned()));
        for (row, label) in workers.chain(store) {
            let y = self.top(row) + 27.0;
            let _ = write!(out, "<text x=\"8\" y=\"{y}\">{label}</text>");
        }
        out
    }
}

/// The picture of `report`: the timeline with a headline and a legend, as one SVG file.
pub fn picture(report: &Report) -> String {
    const HEAD: f64 = 62.0;
    let mut timeline = Timeline::new(report, true);
    let inner = PICTURE_WIDTH - LABELS - 2.0 * EDGE;
    timeline.pixels_per_second = inner / report.seconds().max(0.001);
    timeline.draw();
    let top = HEAD + timeline.height() + 10.0;
    let (legend, legend_height) = legend::rows(report, PICTURE_WIDTH, top);
    let height = top + legend_height + 8.0;
    let [first, second] = headlines(report, timeline.workers);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{PICTURE_WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {PICTURE_WIDTH} {height:.0}\" role=\"img\" aria-label=\"{first}. {second}\">\
         <desc>Made by `tenure torture`, seed {}.</desc><style>{}</style>\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{:.0}\" rx=\"6\"/>\
         <text class=\"headline\" x=\"12\" y=\"26\">{first}</text>\
         <text class=\"{}\" x=\"12\" y=\"47\">{second}</text>\
         <g transform=\"translate(0 {HEAD})\">{}\
         <g transform=\"translate({LABELS} 0)\">{}</g></g>{legend}</svg>",
        report.seed,
        legend::style(),
        PICTURE_WIDTH - 1.0,
        height - 1.0,
        legend::verdict_class(report),
        timeline.row_labels(),
        timeline.svg,
    );
    out
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("one {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// The faults of the run, and the verdict.
fn headlines(report: &Report, workers: usize) -> [String; 2] {
    let faults: usize = report.fault_counts().iter().map(|(_, count)| count).sum();
    let store = report.store.split(':').next().unwrap_or_default();
    let elections = report.history.election_names().len();
    let locks = report.history.names().len() - elections;
    let names = match (locks, elections) {
        // A run in which nothing happened has no names.
        (locks, 0) => counted(locks.max(1), "lock"),
        (0, elections) => counted(elections, "election"),
        (locks, elections) => counted(locks, "lock") + " and " + &counted(elections, "election"),
    };
    let tasks = match report.history.tasks() {
        1 => String::new(),
        tasks => format!(" of {tasks} tasks"),
    };
    let first = format!(
        "tenure torture on {}: {workers} processes{tasks} compete for {names}, {faults} faults in {:.0} s",
        shortened(store),
        report.seconds()
    );
    let second = format!(
        "{} acquisitions, {} overlaps. Verdict: {}",
        report.history.claims.len(),
        report.findings.overlaps.len(),
        report.verdict_text()
    );
    [first, second].map(|line| escaped(&line))
}

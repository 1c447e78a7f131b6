//! `tenure check`: prints what a store, with its settings, guarantees.

use std::io::{self, IsTerminal as _};

use serde_json::{Value, json};
use tenure::guarantees::{Capability, Cell, DetachedHolds, Fault, Guarantees, Order, Promise};
use tenure::store::{Finding, Severity};
use tenure::{Client, Error};

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::results::print_results;
use crate::store;
use crate::text::wrapped;

/// Prints the guarantees and the findings. The exit code tells whether a required guarantee is missing.
pub(crate) async fn check(common: &Common, args: &args::Check, console: &Console) -> Exit {
    print_results(console, async {
        let required: Vec<Fault> = args
            .require
            .iter()
            .map(|name| name.trim().parse())
            .collect::<Result<_, Error>>()?;
        let inspect = async |client: &Client| {
            let mut findings = Vec::new();
            if args.init {
                let created = client.init().await?.into_iter();
                findings.extend(
                    created.map(|what| Finding::new(Severity::Good, format!("made {what}"))),
                );
            }
            findings.extend(client.check().await?);
            Ok((findings, client.guarantees().clone()))
        };
        let (mut findings, guarantees) = store::with_client(common, inspect).await?;
        let guarantees = &guarantees;
        // A bad finding takes away the guarantees of the table.
        let is_void = findings
            .iter()
            .any(|finding| finding.severity == Severity::Bad);
        let missing: Vec<_> = required
            .into_iter()
            .filter(|fault| is_void || !guarantees.survives(*fault))
            .collect();
        let exit = if missing.is_empty() {
            Exit::Done
        } else {
            Exit::No
        };
        let url = tenure::redacted_url(store::url(common));
        if console.json {
            return Ok((
                vec![as_json(&url, guarantees, &findings, &missing).to_string()],
                exit,
            ));
        }
        report_missing(console, guarantees, &missing);
        let lines = match console.quiet {
            true => {
                findings.retain(|finding| finding.severity != Severity::Good);
                findings_as_text(&findings, width())
            }
            false => as_text(&url, guarantees, &findings, width()),
        };
        Ok((lines, exit))
    })
    .await
}

fn report_missing(console: &Console, guarantees: &Guarantees, missing: &[Fault]) {
    for fault in missing {
        let reason = match guarantees.cell(*fault) {
            Some(cell) if !guarantees.survives(*fault) => cell.note,
            Some(_) => "a problem that is marked \"bad\" takes it away",
            None => "it is not known for this store",
        };
        console.error(format!(
            "required, but not guaranteed: {} ({}): {reason}",
            fault.as_str(),
            fault.description()
        ));
    }
}

/// `width` is the width of the terminal. Problems come first: a user runs `tenure check` to find them.
fn as_text(url: &str, guarantees: &Guarantees, findings: &[Finding], width: usize) -> Vec<String> {
    let mut lines = vec![format!("store       {url}"), String::new()];
    lines.extend(findings_as_text(findings, width));
    if !findings.is_empty() {
        lines.push(String::new());
    }
    let can_do = features(guarantees).join(", ");
    let facts = [
        ("fit for", guarantees.fit),
        ("liveness", guarantees.liveness),
        ("clock", guarantees.clock),
        ("waiting", guarantees.waiting),
        ("order", guarantees.order_text()),
        ("token", guarantees.token),
        ("loss", guarantees.loss),
        ("observers", guarantees.observers_text()),
        ("can do", &can_do),
    ];
    lines.extend(facts.map(|(head, text)| format!("{head:10}  {}", wrapped(text, width, 12))));
    lines.push(String::new());
    let promised = |fault| guarantees.cell(fault).map_or("unknown".into(), promise);
    let rows = Fault::ALL.map(|fault| (fault, promised(fault)));
    let columns = [
        rows.iter().map(|(fault, _)| fault.as_str().len()).max(),
        rows.iter().map(|(_, promised)| promised.len()).max(),
    ];
    let [first, second] = columns.map(Option::unwrap_or_default);
    lines.push(format!("{:first$}  {:second$}  WHY", "FAULT", "GUARANTEED"));
    for (fault, promised) in rows {
        let why = guarantees.cell(fault).map_or("", |cell| cell.note);
        let why = wrapped(why, width, first + second + 4);
        let line = format!("{:first$}  {promised:second$}  {why}", fault.as_str());
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
    let words = [
        (
            "exclusion",
            "no two clients believe at the same time that they hold the lock",
        ),
        (
            "no late writes",
            "a former holder cannot write any more; elsewhere, only a check of the fencing token prevents it",
        ),
        (
            "nothing",
            "two clients may believe at the same time that they hold the lock",
        ),
    ];
    lines.extend(words.map(|(word, text)| format!("{word:14}  {}", wrapped(text, width, 16))));
    lines
}

/// The findings in lines, the worst findings first.
fn findings_as_text(findings: &[Finding], width: usize) -> Vec<String> {
    let mut sorted: Vec<_> = findings.iter().collect();
    sorted.sort_by_key(|finding| match finding.severity {
        Severity::Good => 2,
        Severity::Warning => 1,
        _ => 0,
    });
    let line = |finding: &Finding| {
        let text = tenure::name::Escaped(&finding.text).to_string();
        format!(
            "{:8}  {}",
            severity(finding.severity),
            wrapped(&text, width, 10)
        )
    };
    sorted.into_iter().map(line).collect()
}

fn promise(cell: &Cell) -> String {
    let mut text = String::from(match cell.promise {
        Promise::Nothing => "nothing",
        Promise::Claims => "exclusion",
        Promise::Effects => "exclusion, no late writes",
        _ => "cannot happen",
    });
    if cell.late {
        text += ", the next holder waits";
    }
    if cell.token_regress {
        text += ", token may go back";
    }
    text
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "good",
        Severity::Warning => "warning",
        _ => "bad",
    }
}

/// The width of the terminal. Without a terminal, no line is wrapped.
fn width() -> usize {
    match io::stdout().is_terminal() {
        true => rustix::termios::tcgetwinsize(io::stdout()).map_or(100, |it| it.ws_col.into()),
        false => usize::MAX,
    }
}

fn features(guarantees: &Guarantees) -> Vec<&'static str> {
    let all = [
        (guarantees.exclusive, "exclusive"),
        (guarantees.shared, "shared"),
        (guarantees.upgradable, "upgradable"),
        (guarantees.permits, "permits"),
        (guarantees.order == Order::Fair, "fair"),
        (guarantees.min_hold, "min-hold"),
        (guarantees.lock_delay, "lock-delay"),
        (Capability::Elections.is_in(guarantees), "elections"),
        (guarantees.detached == DetachedHolds::EachMode, "detach"),
        (
            guarantees.detached == DetachedHolds::Exclusive,
            "detach (exclusive holds)",
        ),
    ];
    all.into_iter()
        .filter(|(has, _)| *has)
        .map(|(_, feature)| feature)
        .collect()
}

fn as_json(url: &str, guarantees: &Guarantees, findings: &[Finding], missing: &[Fault]) -> Value {
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| json!({ "severity": severity(finding.severity), "text": finding.text }))
        .collect();
    let missing: Vec<_> = missing.iter().map(|fault| fault.as_str()).collect();
    let mut value = json!(guarantees);
    if let Some(fields) = value.as_object_mut() {
        for text_only in ["setting", "why_not", "order"] {
            fields.remove(text_only);
        }
    }
    value["store"] = url.into();
    value["findings"] = findings.into();
    value["missing"] = missing.into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_check_stays_the_same() {
        let cells = vec![
            Cell::new(Fault::HolderKilled, Promise::Effects, "why").late(),
            Cell::new(Fault::Failover, Promise::NotApplicable, "alone"),
        ];
        let mut guarantees = Guarantees::new("x", Order::Fair, cells);
        guarantees.setting = "y=z".into();
        guarantees.lock_delay = true;
        guarantees.fit = "tests";
        let finding = Finding::new(Severity::Warning, "a \"b\"");
        let text = as_json("x://h", &guarantees, &[finding], &[Fault::Failover]).to_string();
        let expected = concat!(
            r#"{"clock":"","faults":["#,
            r#"{"fault":"kill","late":true,"note":"why","promise":"effects","token_regress":false},"#,
            r#"{"fault":"failover","late":false,"note":"alone","promise":"not_applicable","token_regress":false}],"#,
            r#""features":["exclusive","fair","lock-delay"],"findings":[{"severity":"warning","text":"a \"b\""}],"#,
            r#""fit":"tests","liveness":"","loss":"","missing":["failover"],"scheme":"x","store":"x://h","token":"","waiting":""}"#
        );
        assert_eq!(text, expected);
    }
}

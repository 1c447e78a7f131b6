//! The README: its table of stores says what the stores declare.

use std::collections::BTreeSet;
use std::fs;

use tenure::guarantees::{Fault, Guarantees, Promise};

use super::{declared, repository};

/// The table of the README by which a store is chosen.
const CHOICE: &str = "| You have |";

/// The URLs of one row, and what the row says about each fault of [`ASKED`].
struct ChoiceRow {
    urls: Vec<String>,
    answers: Vec<String>,
}

/// The faults that the columns of the table are about.
const ASKED: [Fault; 4] = [
    Fault::HolderKilled,
    Fault::HolderPaused,
    Fault::Partition,
    Fault::Failover,
];

fn choice_rows() -> Vec<ChoiceRow> {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let lines = readme.lines().skip_while(|line| !line.starts_with(CHOICE));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let code = cells[2].split('`').skip(1).step_by(2);
        ChoiceRow {
            urls: code.map(str::to_owned).collect(),
            answers: cells[3..7].iter().map(|it| (*it).to_owned()).collect(),
        }
    })
    .collect()
}

/// Whether two clients can hold the name, in the worst setting of the store of that URL.
fn answer(url: &str, fault: Fault, all: &[Guarantees]) -> &'static str {
    let is_table = url.contains("mode=table");
    let of_url = all.iter().filter(|it| {
        url.starts_with(it.scheme) && it.setting.starts_with("mode=table") == is_table
    });
    let promises: Vec<_> = of_url.map(|it| it.cell(fault).unwrap().promise).collect();
    assert!(!promises.is_empty(), "no store for {url}");
    if promises.contains(&Promise::Nothing) {
        "**yes**"
    } else if promises.iter().all(|it| *it == Promise::NotApplicable) {
        "-"
    } else {
        "no"
    }
}

#[tokio::test]
async fn the_readme_says_for_each_store_whether_two_clients_can_hold_a_name() {
    let all = declared().await;
    let rows = choice_rows();
    assert!(rows.len() > 5, "{}", rows.len());
    for row in rows {
        for (fault, said) in ASKED.into_iter().zip(&row.answers) {
            let answers = row.urls.iter().map(|url| answer(url, fault, &all));
            let worst =
                answers.min_by_key(|it| ["**yes**", "no", "-"].iter().position(|a| a == it));
            let (urls, fault) = (&row.urls, fault.as_str());
            assert_eq!(worst, Some(said.as_str()), "{fault} of {urls:?}");
        }
    }
}

#[test]
fn the_readme_lists_the_stores_of_this_build_and_no_other() {
    let urls = choice_rows().into_iter().flat_map(|row| row.urls);
    let scheme = |url: String| format!("{}:", url.split(':').next().unwrap());
    let listed: BTreeSet<_> = urls.map(scheme).collect();
    let known: BTreeSet<_> = tenure::SCHEMES.iter().map(ToString::to_string).collect();
    assert_eq!(listed, known);
}

/// A first page that is longer is not read; the tasks have a page of their own.
#[test]
fn the_readme_is_one_page() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 250, "{}", readme.lines().count());
}

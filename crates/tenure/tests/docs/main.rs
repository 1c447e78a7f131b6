//! The documents that repeat what the code declares. `TENURE_BLESS=1` rewrites docs/guarantees.md.

mod api;
mod evidence;
mod readme;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use tenure::guarantees::{Capability, DetachedHolds, Fault, Guarantees, Order, Promise};

use evidence::{Evidence, evidence, evidence_of_loss};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The guarantees that every store of this build declares, in the order of the schemes.
async fn declared() -> Vec<Guarantees> {
    // Tests run side by side.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::SeqCst);
    let dir = env::temp_dir().join(format!("tenure-docs-{}-{call}", std::process::id()));
    let mut all = Vec::new();
    for scheme in tenure::SCHEMES {
        // The others need a server.
        if !matches!(*scheme, "memory:" | "file:") {
            continue;
        }
        let url = match *scheme {
            "file:" => format!("file:{}", dir.display()),
            scheme => scheme.to_owned(),
        };
        let client = tenure::connect(&url).await.unwrap();
        all.push(client.guarantees().clone());
        client.close().await;
    }
    let _ = fs::remove_dir_all(dir);
    all.extend(redis());
    all.extend([1, 3].map(tenure::etcd::guarantees));
    all.extend(zookeeper());
    all.extend(sessions());
    all.extend(table());
    all
}

/// Locks of database sessions, with and without the guard, and those of a pool.
fn sessions() -> Vec<Guarantees> {
    use tenure::sessions::{Configuration, guarantees};
    let of = |is_postgres, is_guarded, is_pooled| {
        guarantees(Configuration {
            is_postgres,
            is_guarded,
            is_pooled,
        })
    };
    let of_server = |is_postgres| {
        [
            of(is_postgres, true, false),
            of(is_postgres, false, false),
            of(is_postgres, true, true),
        ]
    };
    [of_server(false), of_server(true)].concat()
}

/// One server or several, and the dialects, which have other modes.
fn zookeeper() -> Vec<Guarantees> {
    use tenure::zookeeper::{Configuration, Dialect, guarantees};
    let plain = Configuration::default();
    let single = Configuration {
        is_single: true,
        ..plain
    };
    let dialects = [
        Dialect::ReadWrite,
        Dialect::Semaphore,
        Dialect::SessionPrefix,
        Dialect::Selector,
        Dialect::Latch,
    ];
    let dialects = dialects.map(|dialect| Configuration { dialect, ..plain });
    let all = [plain, single].into_iter().chain(dialects);
    all.map(guarantees).collect()
}

/// The databases, with the settings that change the guarantees.
fn table() -> Vec<Guarantees> {
    use tenure::tables::{Configuration, Database, Durability, guarantees};
    let plain = Configuration::new(Database::Postgres);
    vec![
        guarantees(Configuration::new(Database::MySql)),
        guarantees(plain),
        guarantees(Configuration {
            durability: Durability::Killed,
            ..plain
        }),
        guarantees(Configuration {
            durability: Durability::Nothing,
            ..plain
        }),
        guarantees(Configuration {
            fails_over: true,
            ..plain
        }),
        guarantees(Configuration {
            is_shedlock: true,
            ..plain
        }),
        guarantees(Configuration {
            is_pooled: true,
            ..plain
        }),
        guarantees(Configuration::new(Database::Sqlite)),
    ]
}

/// The settings of Redis that change the guarantees.
fn redis() -> Vec<Guarantees> {
    use tenure::majority;
    use tenure::redis::{Configuration, Persistence, RedissonLock, guarantees};
    let plain = Configuration {
        persistence: Persistence::None,
        fails_over: false,
        is_guarded: true,
        redisson: None,
    };
    let other = |change: fn(&mut Configuration)| {
        let mut configuration = plain;
        change(&mut configuration);
        guarantees(configuration)
    };
    vec![
        guarantees(plain),
        other(|it| it.is_guarded = false),
        other(|it| it.persistence = Persistence::Mostly),
        other(|it| it.persistence = Persistence::Full),
        other(|it| it.fails_over = true),
        other(|it| it.redisson = Some(RedissonLock::Plain)),
        other(|it| it.redisson = Some(RedissonLock::ReadWrite)),
        other(|it| it.redisson = Some(RedissonLock::Fair)),
        other(|it| it.redisson = Some(RedissonLock::Semaphore)),
        majority::guarantees([&guarantees(plain); 5]),
        majority::guarantees([&other(|it| it.is_guarded = false); 5]),
        majority::guarantees([&other(|it| it.persistence = Persistence::Full); 5]),
    ]
}

/// The title of a configuration in tables and headings.
fn title(guarantees: &Guarantees) -> String {
    match guarantees.setting.as_str() {
        "" => format!("`{}:`", guarantees.scheme),
        setting => format!("`{}:` {setting}", guarantees.scheme),
    }
}

/// The settings of the rows in the first table of the page, and what stands behind the scheme there: the usual setting of
/// each store, and for Redis both with and without a replica.
const COMMON: [(&str, &str); 5] = [
    ("", ""),
    ("no append-only file", ""),
    ("no append-only file, a replica may take over", " replicas"),
    ("three members or more", ""),
    ("mode=table", " mode=table"),
];

/// The table with the twelve properties by which a store is chosen.
fn choice(all: &[Guarantees]) -> String {
    let mut table = String::from(
        "| Store                  | pause | partition | restart | failover | clock | order | shared | upgrade | permits | min_hold | elections | detached  |
| ---------------------- | ----- | --------- | ------- | -------- | ----- | ----- | ------ | ------- | ------- | -------- | --------- | --------- |",
    );
    for guarantees in all {
        let common = COMMON.iter().find(|(it, _)| *it == guarantees.setting);
        let Some((_, label)) = common else {
            continue;
        };
        let store = format!("`{}:`{label}", guarantees.scheme);
        let letter = |fault| guarantees.cell(fault).unwrap().to_string();
        let yes = |can| if can { "yes" } else { "-" };
        let is_fair = matches!(guarantees.order, Order::Fair);
        let _ = write!(
            table,
            "\n| {store:<22} | {:<5} | {:<9} | {:<7} | {:<8} | {:<5} | {:<5} | {:<6} | {:<7} | {:<7} | {:<8} | {:<9} | {:<9} |",
            letter(Fault::HolderPaused),
            letter(Fault::Partition),
            letter(Fault::StoreRestart),
            letter(Fault::Failover),
            clock(guarantees),
            yes(is_fair),
            yes(guarantees.shared),
            yes(guarantees.upgradable),
            yes(guarantees.permits),
            yes(guarantees.min_hold),
            yes(Capability::Elections.is_in(guarantees)),
            detached(guarantees),
        );
    }
    table
}

fn detached(guarantees: &Guarantees) -> &'static str {
    match guarantees.detached {
        DetachedHolds::None => "-",
        _ => guarantees.detached_text(),
    }
}

/// What holds when the store's clock jumps, in the worse direction.
fn clock(guarantees: &Guarantees) -> String {
    let [mut cell, back] = [Fault::StoreClockForward, Fault::StoreClockBack]
        .map(|fault| *guarantees.cell(fault).unwrap());
    cell.promise = cell.promise.min(back.promise);
    cell.late |= back.late;
    cell.token_regress |= back.token_regress;
    cell.to_string()
}

/// The table with a column for each fault and a row for each store.
fn overview(all: &[Guarantees]) -> String {
    let mut table = String::from("| Store |");
    for fault in Fault::ALL {
        let _ = write!(table, " {} |", fault.as_str());
    }
    let _ = write!(table, "\n| --- |{}", " --- |".repeat(Fault::ALL.len()));
    for guarantees in all {
        let _ = write!(table, "\n| {} |", title(guarantees));
        for fault in Fault::ALL {
            match guarantees.cell(fault) {
                Some(cell) => write!(table, " {cell} |"),
                None => write!(table, " ? |"),
            }
            .unwrap();
        }
    }
    table
}

fn page(all: &[Guarantees]) -> String {
    let mut page = format!("# Guarantees\n\n{}\n", choice(all));
    page.push_str(
        "
- `pause`, `partition`, `restart`, `failover`: what holds when the holder stops for longer than its ttl, when it cannot reach the store for so long, when the store is killed and started again, and when its leader or primary is replaced.
- `clock`: what holds when the store's wall clock jumps, in the worse direction.
- `order`: whether waiters are served in the order in which they came.
- `shared`, `upgrade`, `permits`, `min_hold`, `elections`: whether the store has shared holds, upgradable holds, permits, `min_hold` and elections.
- `detached`: whether holds can go on [without a process](detached-holds.md): `yes` for each mode that the store has, `exclusive` for exclusive holds.

The rows have the usual setting of each store: no append-only file for Redis, where `replicas` means that a replica may take over, and three members or more for etcd.
The tables below have all settings and faults, with the reason and the test for each letter.
`hazelcast:` is a crate of its own, and [its page](stores/hazelcast.md#guarantees) has its letters.
`TENURE_BLESS=1 cargo test -p tenure --test docs` writes this page from what the stores declare, and a test compares the two.
`tenure check` and `Client::guarantees` show the same for the store in use.

## Letters

*Exclusion* means: no two clients believe at the same time that they hold the name.
A *late write* is a write of a former holder that arrives after the name was granted to the next holder.

- **S**: exclusion holds, and late writes are impossible.
- **E**: exclusion holds, and a late write is possible.
  Only the fencing token stops it, if the protected resource checks the token.
- **X**: exclusion may fail: two clients may believe at the same time that they hold the name.
- **-**: the fault cannot happen to this store.
- **L**: the next holder may have to wait.
- **r**: tokens may go backward.

For each letter the page names a test that shows it on a real server under that fault, or says why there is no such test.
An **X** has a test as well: that test waits until two clients hold the name at the same time.
The tests of `zookeeper:` use its default `dialect`; the others keep a lock by the same sessions and nodes.

The letters are about a hold with default options.
Where a hold can end while its process goes on, **S** becomes **E**: when an operator breaks the lock, with `max_hold`, and without renewal.

",
    );
    page += "## All settings and faults\n\n";
    page += &overview(all);
    page += "\n\n";
    for fault in Fault::ALL {
        let _ = writeln!(page, "- `{}`: {}.", fault.as_str(), fault.description());
    }
    for guarantees in all {
        write_section(&mut page, guarantees);
    }
    page
}

/// The section about one configuration: its properties, and a row for each fault.
fn write_section(page: &mut String, guarantees: &Guarantees) {
    let yes_no = |can| if can { "yes" } else { "no" };
    let order = guarantees.order_text();
    let _ = write!(
        page,
        "
## {}

| | |
| --- | --- |
| Fit for | {} |
| What keeps a hold alive | {} |
| Whose clock ends a lease | {} |
| Fencing token | {} |
| How waiters learn of their turn | {} |
| Order of waiters | {order} |
| How a loss is noticed, and how late | {}{} |
| How observers of an election learn of a change, and how late | {} |
| Shared holds, upgradable holds, permits | {}, {}, {} |
| `min_hold`, `lock_delay` | {}, {} |
| Detached holds | {} |
{}
| Fault | Promise | Why | Shown by |
| --- | --- | --- | --- |
",
        title(guarantees),
        guarantees.fit,
        guarantees.liveness,
        guarantees.clock,
        guarantees.token,
        guarantees.waiting,
        guarantees.loss,
        shown_by(evidence_of_loss(guarantees)),
        guarantees.observers_text(),
        yes_no(guarantees.shared),
        yes_no(guarantees.upgradable),
        yes_no(guarantees.permits),
        yes_no(guarantees.min_hold),
        yes_no(guarantees.lock_delay),
        guarantees.detached_text(),
        why_not(guarantees),
    );
    for cell in &guarantees.faults {
        let (fault, note) = (cell.fault.as_str(), cell.note);
        let shown = match (cell.promise, evidence(guarantees, cell.fault)) {
            (Promise::NotApplicable, _) => "-".to_owned(),
            (_, Evidence::NotShown(why)) => format!("no test: {why}"),
            (_, Evidence::Shown(tests)) => places(tests),
        };
        let _ = writeln!(page, "| {fault} | {cell} | {note} | {shown} |");
    }
}

/// The row that says why a store does not have everything, as its errors do.
fn why_not(guarantees: &Guarantees) -> String {
    match guarantees.why_not {
        "" => String::new(),
        reason => format!("| Why not more | {reason} |\n"),
    }
}

/// The names of these tests in the pages.
fn places(tests: &[&str]) -> String {
    let tests: Vec<_> = tests
        .iter()
        .map(|test| format!("`{}`", place(test)))
        .collect();
    tests.join(", ")
}

fn shown_by(tests: &[&str]) -> String {
    match tests {
        [] => String::new(),
        _ => format!("; shown by {}", places(tests)),
    }
}

#[tokio::test]
async fn the_guarantees_page_says_what_the_stores_declare() {
    let all = declared().await;
    for guarantees in &all {
        let faults: Vec<_> = guarantees.faults.iter().map(|cell| cell.fault).collect();
        assert_eq!(faults, Fault::ALL, "{}", guarantees.scheme);
    }
    let path = repository().join("docs/guarantees.md");
    let page = page(&all);
    if env::var_os("TENURE_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/guarantees.md is not what the stores declare; rewrite it: TENURE_BLESS=1 cargo test -p tenure --test docs"
    );
}

#[tokio::test]
async fn the_crate_page_has_the_same_table() {
    let source = include_str!("../../src/lib.rs");
    let docs: Vec<_> = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .collect();
    for line in overview(&declared().await).lines() {
        assert!(
            docs.contains(&line),
            "src/lib.rs lacks this line:\n//! {line}"
        );
    }
}

/// The first cell of each row of the table that starts with this head.
fn first_cells<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(1))
        .map(|cell| cell.trim().trim_matches('`'))
        .collect()
}

/// The schemes of the URLs in the first column of the table that starts with this head.
fn listed_schemes(text: &str, head: &str) -> Vec<String> {
    first_cells(text, head)
        .iter()
        .map(|url| format!("{}:", url.split(':').next().unwrap()))
        .collect()
}

#[test]
fn the_crate_page_lists_the_stores_of_this_build_and_no_other() {
    let page = include_str!("../../src/lib.rs").replace("//! ", "");
    assert_eq!(listed_schemes(&page, "| URL |"), tenure::SCHEMES);
}

#[test]
fn the_page_about_tasks_lists_the_exit_codes_of_the_command_line() {
    let numbers = |text: &str, head| -> Vec<String> {
        let cells = first_cells(text, head).join(" ");
        let words = cells.split(|c: char| !c.is_ascii_digit());
        words
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let tasks = fs::read_to_string(repository().join("docs/tasks.md")).unwrap();
    let source = fs::read_to_string(repository().join("crates/tenure-cli/src/exit.rs")).unwrap();
    let page = source.replace("//! ", "");
    let codes = numbers(&tasks, "| Code |");
    assert_eq!(codes, numbers(&page, "| code |"));
    assert!(codes.len() > 10, "{codes:?}");
}

/// The name of a test in the pages.
fn place(test: &str) -> String {
    let (file, test) = test.split_once("::").unwrap();
    match file.split_once('/') {
        Some(("runs", file)) => format!("tenure-torture/tests/runs/{file}.rs::{test}"),
        _ => format!("{file}.rs::{test}"),
    }
}

#[test]
fn the_tests_that_pages_name_exist() {
    for page in ["failures", "guarantees"] {
        let page = fs::read_to_string(repository().join(format!("docs/{page}.md"))).unwrap();
        all_exist(&page);
    }
}

fn all_exist(page: &str) {
    let named: Vec<_> = page
        .split('`')
        .filter_map(|code| code.split_once(".rs::"))
        .collect();
    assert!(named.len() > 20, "{}", named.len());
    for (file, test) in named {
        let source = fs::read_to_string(repository().join(format!("crates/{file}.rs")));
        let test = test.rsplit("::").next().unwrap();
        let source = source.unwrap_or_else(|err| panic!("crates/{file}.rs: {err}"));
        assert!(
            // Or the same on several stores: `fn test<Store>()`.
            ["(", "<"]
                .map(|end| format!("fn {test}{end}"))
                .iter()
                .any(|it| source.contains(it)),
            "crates/{file}.rs has no test `{test}`"
        );
    }
}

/// The code blocks of that language on a page.
fn code_blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1);
    let end = |block: &str| block.split("\n```").next().map(str::to_owned);
    blocks.filter_map(end).collect()
}

#[test]
fn the_page_about_writing_a_store_shows_the_store_that_is_tested() {
    let folder = repository().join("docs/writing-a-store");
    let page = fs::read_to_string(folder.with_extension("md")).unwrap();
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    let rust = [read("src/lib.rs"), read("tests/conformance.rs")];
    let lua = [read("src/acquire.lua"), read("src/change.lua")];
    for (language, files) in [("rust", &rust), ("lua", &lua)] {
        let blocks = code_blocks(&page, language);
        for block in &blocks {
            let is_there = files.iter().any(|file| file.contains(block));
            assert!(is_there, "no file of the store has this:\n{block}");
        }
        let shown: usize = blocks.iter().map(|block| block.lines().count()).sum();
        let lines = |file: &String| file.lines().filter(|line| !line.is_empty()).count();
        let all: usize = files.iter().map(lines).sum();
        assert!(shown >= all - 2, "{shown} of {all} lines of {language}");
    }
}

/// All pages of the repository for people: in its root, and in `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![repository().join("docs")];
    let mut pages: Vec<PathBuf> = Vec::new();
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|it| it.unwrap().path()).collect::<Vec<_>>()
    };
    let is_page = |path: &PathBuf| path.extension().is_some_and(|it| it == "md");
    pages.extend(entries(&repository()).into_iter().filter(is_page));
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if is_page(&path) {
                pages.push(path);
            }
        }
    }
    pages
}

/// The name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.replace(' ', "-");
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
        .collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut links = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.contains(' ') || link.starts_with("http") {
                continue;
            }
            links += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{}: no file for {link}", page.display());
            if !heading.is_empty() {
                let headings = fs::read_to_string(&target).unwrap();
                let mut lines = headings.lines().filter(|line| line.starts_with('#'));
                assert!(
                    lines.any(|line| anchor(line) == heading),
                    "{}: no heading for {link}",
                    page.display()
                );
            }
        }
    }
    assert!(links > 100, "{links}");
}

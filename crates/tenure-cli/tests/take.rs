//! `take`, `renew` and `release`: a hold that goes on without a process.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::{Output, Stdio};

use rustix::process::Signal;
use support::receipts::{Receipts, says};
use support::{json, next_event, scenarios, text};

/// What `take` prints is the receipt, and nothing else.
#[test]
fn a_hold_goes_on_until_its_receipt_is_given_back_and_no_second_time() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let name = "größe 🔒 & co/x y";
        let [receipt, err] = store.ends(0, &["take", name, "--holder", "build 77"]);
        assert_eq!(err, "");
        assert_eq!(receipt.lines().count(), 1);
        assert!(receipt.starts_with("tenure-receipt-1:store="), "{receipt}");
        let receipt = receipt.trim();
        assert_eq!(store.0.try_run(name), 75);
        store.ends(75, &["take", "-n", name]);
        let [renewed, _] = store.ends(0, &["renew", receipt]);
        assert!(renewed.starts_with(&format!("renewed \"{name}\", token ")));
        let [released, _] = store.ends(0, &["release", receipt]);
        assert_eq!(released, format!("released \"{name}\"\n"));
        assert_eq!(store.0.try_run(name), 0);
        let lost = ["the lock had ended"];
        says(&store.ends(76, &["release", receipt]), &lost);
        says(&store.ends(76, &["renew", receipt]), &lost);
        says(
            &store.ends(76, &["run", "--receipt", receipt, "--", "true"]),
            &lost,
        );
    }
}

#[test]
fn take_and_run_exclude_each_other_in_the_default_directory() {
    let home = Receipts::new();
    let at_home = |arguments: &[&str]| -> Output {
        let mut command = home.0.tenure(arguments);
        let command = command
            .env_remove("TENURE_URL")
            .env_remove("XDG_STATE_HOME");
        command.env("HOME", home.0.dir.path()).output().unwrap()
    };
    let code = |arguments: &[&str]| at_home(arguments).status.code().unwrap();
    let file = home.path("x.receipt");
    assert_eq!(code(&["run", "x", "--", "true"]), 0);
    assert_eq!(code(&["take", "x", "--receipt", &file]), 0);
    assert_eq!(code(&["run", "-n", "x", "--", "true"]), 75);
    assert_eq!(code(&["run", "-n", "--shared", "x", "--", "true"]), 75);
    // The receipt says the directory, and not that it is the default one.
    let url = format!("file:{}", home.path(".local/state/tenure/locks"));
    assert_eq!(code(&["-u", &url, "renew", &file]), 0);
    assert_eq!(code(&["release", &file]), 0);
    let held = "tenure take -n x; echo $?";
    let path = format!("PATH={}:$PATH", home.path(""));
    symlink(env!("CARGO_BIN_EXE_tenure"), home.path("tenure")).unwrap();
    let script = format!("{path}; {held}");
    let output = at_home(&["run", "x", "--", "sh", "-c", &script]);
    assert_eq!(text(&output.stdout), "75\n", "{}", text(&output.stderr));
}

#[test]
fn a_hold_ends_when_its_time_is_over_and_a_renewal_begins_the_time_again() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let [receipt, _] = store.ends(0, &["take", "short", "--for", "1s"]);
        let renewed = store.path("renewed");
        // The time is long enough for a renewal on a busy machine.
        store.ends(0, &["take", "long", "--for", "1m", "--receipt", &renewed]);
        let [line, _] = store.ends(0, &["renew", &renewed, "--for", "1h"]);
        assert!(
            line.contains("ends in 59m") || line.contains("ends in 1h 0m"),
            "{line}"
        );
        // A waiter is served at the end of the hold.
        store.ends(0, &["run", "-w", "5m", "short", "--", "true"]);
        store.ends(76, &["release", receipt.trim()]);
        assert_eq!(store.0.try_run("long"), 75);
        // A shorter time does not make the hold shorter.
        let [line, _] = store.ends(0, &["renew", &renewed, "--for", "1s"]);
        assert!(line.contains("ends in 59m"), "{line}");
        store.ends(0, &["release", &renewed]);
    }
}

#[test]
fn a_job_that_is_repeated_renews_its_hold_and_does_not_wait_for_itself() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.take("job.receipt", &["b", "a"]);
        let mode = fs::metadata(&file).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let first = fs::read_to_string(&file).unwrap();
        let token = store.token("a");
        let again = [
            "take",
            "-n",
            "--for",
            "2h",
            "--receipt",
            &file,
            "a",
            "b",
            "--json",
        ];
        let [line, _] = store.ends(0, &again);
        let line = &json(line.as_bytes())[0];
        assert_eq!(line["renewed"], true);
        assert_eq!(line["names"], serde_json::json!(["a", "b"]));
        assert_eq!(line["receipt_file"], *file);
        assert_eq!(line["tokens"][0].to_string(), token);
        assert!(line["ttl_left_ms"].as_u64().unwrap() > 3_600_000, "{line}");
        assert!(line.get("receipt").is_none());
        // The receipt has the new time, and the same hold.
        let second = fs::read_to_string(&file).unwrap();
        assert_ne!(second, first);
        assert_eq!(second.replace("ttl=7200", "ttl=3600"), first);
        assert_eq!(fs::metadata(&file).unwrap().mode(), mode);
        // The file stays, so that a second release has its own code.
        store.ends(0, &["release", &file]);
        assert_eq!(fs::read_to_string(&file).unwrap(), second);
        store.ends(76, &["release", &file]);
        // The hold is over, so the locks are taken again.
        store.ends(0, &again);
        assert_ne!(store.token("a"), token);
        store.ends(0, &["release", &file]);
        // Nothing is left beside the receipt.
        let left = fs::read_dir(store.0.dir.path()).unwrap();
        let left = left.map(|it| it.unwrap().file_name().into_string().unwrap());
        assert!(left.into_iter().all(|name| !name.contains(".tenure-")));
    }
}

#[test]
fn of_a_receipt_that_has_lost_a_name_the_others_are_given_back() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.take("job.receipt", &["a", "b"]);
        store.ends(0, &["break", "a", "--token", &store.token("a")]);
        store.ends(76, &["renew", &file]);
        assert_eq!(store.0.try_run("b"), 75);
        store.ends(76, &["release", &file]);
        assert_eq!(store.0.try_run("b"), 0);
        // A job that is repeated does not wait for the name that is left.
        let file = store.take("job.receipt", &["a", "b"]);
        store.ends(0, &["break", "b", "--token", &store.token("b")]);
        store.take("job.receipt", &["a", "b"]);
        store.ends(0, &["release", &file]);
    }
}

#[test]
fn the_receipt_of_another_hold_that_goes_on_is_never_overwritten() {
    let store = Receipts::new();
    let file = store.take("x.receipt", &["x"]);
    let receipt = fs::read_to_string(&file).unwrap();
    let goes_on = ["goes on", "\"x\", token", "tenure release"];
    for asked in [&["y"][..], &["x", "y"]] {
        let taken = store.ends(2, &[&["take", "-n", "--receipt", &file], asked].concat());
        says(&taken, &goes_on);
    }
    let other = format!("file:{}", store.path("other"));
    let taken = store.ends(2, &["-u", &other, "take", "x", "--receipt", &file]);
    says(&taken, &["another store", "/other\"", "-u"]);
    for action in ["renew", "release"] {
        let refused = store.ends(2, &["-u", &other, action, &file]);
        says(&refused, &["another store", "-u", "TENURE_URL"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), receipt);
    assert_eq!(store.0.try_run("y"), 0);
    store.ends(0, &["release", &file]);
    // The hold is over, so the file may be used for another one.
    store.take("x.receipt", &["y"]);
    assert_ne!(fs::read_to_string(&file).unwrap(), receipt);
}

#[test]
fn a_file_that_is_no_receipt_is_refused_and_left_alone() {
    let store = Receipts::new();
    let [text_file, link] = ["notes.txt", "link"].map(|it| store.path(it));
    fs::write(&text_file, "my notes").unwrap();
    symlink(&text_file, &link).unwrap();
    let changed = store.path("changed");
    let receipt = fs::read_to_string(store.take("x.receipt", &["x"])).unwrap();
    let (kept, owner) = receipt.trim().split_at(receipt.trim().len() - 1);
    let other_owner = if owner == "0" { "1" } else { "0" };
    fs::write(&changed, format!("{kept}{other_owner}")).unwrap();
    let other_format = store.path("format");
    fs::write(&other_format, receipt.replacen("receipt-1", "receipt-2", 1)).unwrap();
    let dir = store.0.dir.path().to_str().unwrap();
    for (file, words) in [
        (&*text_file, &["no receipt", "another file"][..]),
        (&link, &["no receipt", "another file"]),
        (dir, &["no receipt", "another file"]),
        (&other_format, &["format 2", "another file"]),
    ] {
        let taken = store.ends(2, &["take", "-n", "y", "--receipt", file]);
        says(&taken, words);
    }
    assert_eq!(fs::read_to_string(&text_file).unwrap(), "my notes");
    assert_eq!(store.0.try_run("y"), 0);
    // An empty file is one that `mktemp` made.
    fs::write(&text_file, "").unwrap();
    store.take("notes.txt", &["y"]);
    // A receipt with another owner is one of a hold that never was: no hold is touched.
    store.ends(76, &["release", &changed]);
    assert_eq!(store.0.try_run("x"), 75);
}

/// `release`, `renew` and `run` would take them for standard input, and for a receipt itself.
#[test]
fn a_file_that_others_could_not_name_is_refused() {
    let store = Receipts::new();
    for file in ["-", "tenure-receipt-77"] {
        let refused = store.ends(2, &["take", "-n", "x", "--receipt", file]);
        says(&refused, &["`release`", &format!("./{file}")]);
    }
    assert_eq!(store.0.try_run("x"), 0);
}

#[test]
fn a_directory_that_another_program_has_locked_keeps_nothing_waiting() {
    let store = Receipts::new();
    let directory = fs::File::open(store.0.dir.path()).unwrap();
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let file = store.take("x.receipt", &["x"]);
    let receipt = fs::read_to_string(file).unwrap();
    assert!(receipt.starts_with("tenure-receipt-"), "{receipt}");
}

#[test]
fn a_receipt_that_cannot_be_read_is_explained() {
    let store = Receipts::new();
    let missing = store.path("missing");
    let broken = store.path("broken");
    fs::write(&broken, b"\xff\xfe").unwrap();
    for action in [&["renew"][..], &["release"], &["run", "--receipt"]] {
        let command: &[&str] = match action[0] {
            "run" => &["--", "true"],
            _ => &[],
        };
        let ends = |receipt: &str| store.ends(2, &[action, &[receipt], command].concat());
        says(&ends(&missing), &["there is no file", &missing]);
        says(&ends(&broken), &["broken\"", "no receipt"]);
        says(&ends("tenure-receipt-1:x"), &["cut off"]);
        // The text of a receipt is a secret.
        let secret = "tenure-receipt-1:store=file&ttl=1us&mode=exclusive&name=x&token=1&owner=5ec";
        let refused = ends(secret);
        says(&refused, &["owner"]);
        assert!(!refused[1].contains("5ec"), "{refused:?}");
    }
    // Nothing was made in the store.
    assert!(!store.0.path("locks").exists());
}

#[test]
fn a_receipt_comes_from_a_file_from_standard_input_or_from_a_pipe() {
    let store = Receipts::new();
    let file = store.take("x.receipt", &["x"]);
    let stdin = || Stdio::from(fs::File::open(&file).unwrap());
    let renewed = store
        .0
        .tenure(&["renew", "-"])
        .stdin(stdin())
        .output()
        .unwrap();
    assert!(renewed.status.success(), "{}", text(&renewed.stderr));
    // A secret that is mounted into a container is a symbolic link.
    symlink(&file, store.path("link")).unwrap();
    store.ends(0, &["renew", &store.path("link")]);
    // As a shell passes `<(command)`.
    let piped = store
        .0
        .tenure(&["release", "/dev/stdin"])
        .stdin(stdin())
        .output()
        .unwrap();
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    // Standard input is the command's.
    let refused = store.ends(2, &["run", "--receipt", "-", "--", "true"]);
    says(&refused, &["standard input", "name a file"]);
}

#[test]
fn without_a_place_for_the_receipt_nothing_is_held() {
    let store = Receipts::new();
    let nowhere = store.path("no/such/dir/x.receipt");
    let refused = store.ends(70, &["take", "x", "--receipt", &nowhere]);
    says(&refused, &["cannot write the receipt", "directory"]);
    assert_eq!(store.0.try_run("x"), 0);
    // Every write into this file fails as on a full disk.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = store.0.tenure(&["take", "x"]);
    let output = command.stdout(full).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{message}");
    assert!(message.contains("the lock was given back"), "{message}");
    assert_eq!(store.0.try_run("x"), 0);
}

#[test]
fn a_directory_that_is_gone_when_the_lock_comes_leaves_nothing_held() {
    let store = Receipts::new();
    let holder = store.0.start_hold(&["x"]);
    fs::create_dir(store.path("dir")).unwrap();
    let file = store.path("dir/x.receipt");
    let mut taking = store.0.start(&["take", "--json", "x", "--receipt", &file]);
    taking.event("waiting");
    fs::remove_dir(store.path("dir")).unwrap();
    drop(holder);
    let message = taking.event("error")["message"].to_string();
    assert!(message.contains("the lock was given back"), "{message}");
    assert_eq!(taking.code(), 70);
    assert_eq!(store.0.try_run("x"), 0);
}

/// Two jobs with one file, of which the second waits: it does not overwrite what the first one wrote meanwhile.
#[test]
fn a_receipt_that_comes_while_the_lock_is_waited_for_is_kept() {
    let store = Receipts::new();
    let mut holder = store.0.start_hold(&["x"]);
    let file = store.path("job.receipt");
    let mut taking = store.0.start(&["take", "--json", "x", "--receipt", &file]);
    taking.event("waiting");
    store.take("job.receipt", &["y"]);
    let receipt = fs::read_to_string(&file).unwrap();
    holder.close_input();
    let message = taking.event("error")["message"].to_string();
    assert!(
        message.contains("goes on") && message.contains("given back"),
        "{message}"
    );
    assert_eq!(taking.code(), 2);
    assert_eq!(fs::read_to_string(&file).unwrap(), receipt);
    assert_eq!((store.0.try_run("x"), store.0.try_run("y")), (0, 75));
}

/// Standard error goes into the log of a CI. The owner id is the secret of a receipt.
#[test]
fn no_event_and_no_log_has_the_secret_of_the_receipt() {
    let store = Receipts::new();
    let [out, events] = store.ends(0, &["take", "x", "--json"]);
    let out = &json(out.as_bytes())[0];
    let receipt = out["receipt"].as_str().unwrap();
    let owner = receipt.rsplit('=').next().unwrap();
    assert_eq!((owner.len(), &out["renewed"]), (32, &false.into()));
    assert!(out["ends"].as_str().unwrap().ends_with('Z'));
    next_event(&mut events.as_bytes(), "acquired");
    assert!(!events.contains(owner), "{events}");
    for arguments in [
        &["-vv", "renew", receipt][..],
        &["-vv", "run", "--receipt", receipt, "--", "true"],
        &["-vv", "--json", "release", receipt],
    ] {
        let [out, err] = store.ends(0, arguments);
        assert!(!(out + &err).contains(owner), "{err}");
    }
    let all = store.ends(76, &["-vv", "release", receipt]).concat();
    assert!(!all.contains(owner), "{all}");
}

#[test]
fn a_signal_ends_the_wait() {
    let store = Receipts::new();
    let _holder = store.0.start_hold(&["x"]);
    let file = store.path("x.receipt");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut taking = store.0.start(&["take", "--json", "x", "--receipt", &file]);
        taking.event("waiting");
        taking.signal(signal);
        assert_eq!(taking.code(), code);
        assert_eq!(taking.rest(), "");
    }
    assert!(!store.0.path("x.receipt").exists());
    store.ends(75, &["take", "-w", "50ms", "x"]);
    store.ends(9, &["take", "-n", "-E", "9", "x"]);
}

#[test]
fn others_see_the_holder_the_token_and_the_end_and_can_end_the_hold() {
    for store in [Receipts::new(), Receipts::in_sqlite()] {
        let file = store.path("x.receipt");
        let taken = store.ends(
            0,
            &[
                "take",
                "jobs/x",
                "--for",
                "2h",
                "--holder",
                "build 77",
                "--receipt",
                &file,
            ],
        );
        assert!(
            taken[0].starts_with("acquired \"jobs/x\", token "),
            "{taken:?}"
        );
        assert!(taken[0].contains("ends in 1h 59m") || taken[0].contains("ends in 2h 0m"));
        let token = store.token("jobs/x");
        let [list, _] = store.ends(0, &["list"]);
        for word in ["jobs/x", "build 77", "1h 59m", &*token] {
            assert!(list.contains(word), "{word}: {list}");
        }
        let [status, _] = store.ends(0, &["status", "jobs/x"]);
        for word in ["\"build 77\"", "ends in 1h 59m", &*token] {
            assert!(status.contains(word), "{word}: {status}");
        }
        let held = &json(&store.0.output(&["list", "--json"]).stdout)[0]["holds"][0];
        assert!(held["ttl_left_ms"].as_u64().unwrap() > 7_000_000, "{held}");
        let mut watch = store.0.start(&["watch", "--interval", "50ms"]);
        let line = watch.line();
        assert!(
            line.contains("build 77") && line.contains("ends in 1h 59m"),
            "{line}"
        );
        store.ends(0, &["break", "jobs/x", "--token", &token]);
        assert!(watch.line().contains("\"jobs/x\" ended"));
        store.ends(76, &["renew", &file]);
        assert_eq!(store.0.try_run("jobs/x"), 0);
    }
}

#[test]
fn of_several_names_some_are_taken_in_their_modes() {
    let store = Receipts::in_sqlite();
    let _a = store.0.start_hold(&["gpu/0"]);
    let gpus = ["gpu/0", "gpu/1", "gpu/2"];
    let file = store.path("gpu.receipt");
    let two = [
        &["take", "-n", "--k-of", "2", "--receipt", &file],
        &gpus[..],
    ]
    .concat();
    store.ends(0, &two);
    assert_eq!(
        store
            .0
            .code(&[&["run", "-n", "--any"], &gpus[..], &["--", "true"]].concat()),
        75
    );
    let receipt = fs::read_to_string(&file).unwrap();
    store.ends(0, &two);
    assert_eq!(fs::read_to_string(&file).unwrap(), receipt, "the same two");
    store.ends(0, &["release", &file]);
    // Another mode is another hold.
    let readers = [store.path("r1"), store.path("r2")];
    for reader in &readers {
        store.ends(0, &["take", "-n", "--shared", "index", "--receipt", reader]);
    }
    says(
        &store.ends(2, &["take", "-n", "index", "--receipt", &readers[0]]),
        &["goes on", "shared"],
    );
    for reader in &readers {
        assert_eq!(store.0.try_run("index"), 75);
        store.ends(0, &["release", reader]);
    }
    let permits = |code| store.ends(code, &["take", "-n", "--permits", "2", "pool"]);
    let receipts = [permits(0), permits(0)].map(|[receipt, _]| receipt.trim().to_owned());
    permits(75);
    store.ends(0, &["release", &receipts[1]]);
    permits(0);
}

#[test]
fn stores_whose_holds_end_with_their_process_refuse_before_anything_is_taken() {
    let store = Receipts::new();
    let refused = store.ends(2, &["-u", "memory:", "take", "x"]);
    says(&refused, &["`memory:`", "leave `-u` out"]);
    // The default store keeps exclusive holds.
    for mode in [&["--shared"][..], &["--permits", "2"]] {
        let [out, err] = store.ends(2, &[&["take", "x"], mode].concat());
        assert_eq!(out, "");
        assert!(err.contains("exclusive"), "{err}");
    }
    assert_eq!(store.0.try_run("x"), 0);
}

#[test]
fn watch_prints_a_line_per_change_here_too() {
    let store = Receipts::in_sqlite();
    scenarios::watch_prints_a_line_per_change(&store.0);
}

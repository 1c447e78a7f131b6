//! `tenure run`: the environment of the command, how it ends, and who holds the lock meanwhile.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{STUBBORN, Store, children, next_event, text, wait_until_stopped};

#[test]
fn the_status_of_the_command_passes_through() {
    let store = Store::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 75", 75),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -INT $$", 130),
    ] {
        assert_eq!(
            store.code(&["run", "x", "--", "sh", "-c", script]),
            code,
            "{script}"
        );
        assert_eq!(store.try_run("x"), 0, "free after: {script}");
    }
}

#[test]
fn a_command_that_is_nowhere_is_not_found_though_a_directory_of_path_is_closed_to_us() {
    let store = Store::new();
    // Root may read every directory, so for root this test shows only that the usual search works.
    let closed = store.path("closed");
    std::fs::create_dir(&closed).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let path = format!("{}:/usr/bin:/bin", closed.display());
    let mut command = store.tenure(&["run", "x", "--", "no-such-command-anywhere"]);
    let output = command.env("PATH", path).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
}

#[test]
fn a_command_that_cannot_run_exits_as_in_a_shell_and_frees_the_name() {
    let store = Store::new();
    let broken = store.path("broken");
    std::fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (command, code) in [
        ("no-such-command-anywhere", 127),
        ("/no/such/file", 127),
        ("/etc/passwd", 126),
        ("/", 126),
        (broken.to_str().unwrap(), 126),
    ] {
        let output = store.output(&["run", "x", "--", command]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(command), "{message}");
        assert_eq!(store.try_run("x"), 0, "{command}");
    }
}

#[test]
fn the_environment_names_the_lock_and_wins_over_what_was_inherited() {
    let store = Store::new();
    let script = r#"printf '%s|' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_OWNER""#;
    let run = |names: &[&str]| {
        let arguments = [&["run"], names, &["--", "sh", "-c", script]].concat();
        let mut command = store.tenure(&arguments);
        for name in ["TENURE_NAME", "TENURE_TOKEN", "TENURE_OWNER"] {
            command.env(name, "inherited");
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let text = text(&output.stdout);
        let parts: Vec<_> = text.split('|').map(String::from).collect();
        parts
    };
    let first = run(&["über/x"]);
    assert_eq!(first[0], "über/x");
    assert_eq!(first[2].len(), 32);
    let second = run(&["über/x"]);
    assert!(second[1].parse::<u64>().unwrap() > first[1].parse::<u64>().unwrap());
    assert_ne!(second[2], first[2], "each acquisition has another owner");
    let both = run(&["b", "a"]);
    assert_eq!(both[0].lines().count(), 2);
    assert_eq!(both[1].lines().count(), 2);
    assert_eq!(both[2].lines().count(), 2);
    assert_eq!(both[0], "a\nb");
    let owners: Vec<_> = both[2].lines().collect();
    assert_ne!(owners[0], owners[1]);
}

#[test]
fn input_and_output_pass_through_untouched() {
    let store = Store::new();
    let mut child = store
        .tenure(&["run", "x", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let data: Vec<u8> = (0..1_000_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == data);
    let output = store.output(&["run", "x", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
}

/// What `script` prints, once run directly and once by `tenure`.
fn directly_and_under_a_lock(script: &str) -> [String; 2] {
    let store = Store::new();
    let direct = std::process::Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let locked = store.output(&["run", "x", "y", "--", "sh", "-c", script]);
    [text(&direct.stdout), text(&locked.stdout)]
}

#[test]
fn no_descriptor_leaks_into_the_command() {
    let [direct, locked] = directly_and_under_a_lock("ls /proc/self/fd");
    assert_eq!(direct, locked);
}

#[test]
fn signals_are_as_the_command_expects_them() {
    let [direct, locked] =
        directly_and_under_a_lock("grep -E '^Sig(Blk|Ign|Cgt):' /proc/self/status");
    assert_eq!(direct, locked);
}

#[test]
fn what_the_caller_ignores_the_command_ignores() {
    let store = Store::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!(
        "trap '' HUP; exec {tenure} run x -- sh -c 'kill -HUP $$; kill -HUP $PPID; echo on'"
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("TENURE_URL", store.url());
    assert_eq!(text(&command.output().unwrap().stdout), "on\n");
}

#[test]
fn signals_reach_the_command_and_its_children() {
    let store = Store::new();
    for (signal, name, code) in [
        (Signal::INT, "INT", 130),
        (Signal::TERM, "TERM", 143),
        (Signal::HUP, "HUP", 129),
        (Signal::QUIT, "QUIT", 131),
        (Signal::USR1, "USR1", 138),
        (Signal::USR2, "USR2", 140),
    ] {
        // The child gets the signal, too, because it is in the command's group. The shell runs its trap after the child has
        // ended.
        let script = format!(
            "trap 'echo parent; exit 9' {name}\n
             sh -c 'trap \"echo child; exit\" {name}; echo up; while :; do sleep 0.01; done'; exit 1"
        );
        let mut process = store.start_run(&[], "x", &script);
        process.lines_are(&["up"]);
        process.signal(signal);
        process.lines_are(&["child", "parent"]);
        assert_eq!(process.code(), 9, "{name}");
        let mut process = store.start_run(&[], "x", "echo up; exec sleep 1000");
        process.lines_are(&["up"]);
        process.signal(signal);
        assert_eq!(process.code(), code, "{name}");
        assert_eq!(store.try_run("x"), 0);
    }
}

#[test]
fn a_command_that_ends_in_its_own_time_after_term_keeps_the_lock_until_then() {
    let store = Store::new();
    let mut process = store.start_run(
        &["--grace", "0"],
        "x",
        "trap 'echo asked; read line; exit 4' TERM; echo up; while :; do sleep 0.01; done",
    );
    process.lines_are(&["up"]);
    process.signal(Signal::TERM);
    process.lines_are(&["asked"]);
    assert_eq!(store.try_run("x"), 75);
    process.write_line("go");
    assert_eq!(process.code(), 4);
}

#[test]
fn kill_9_ends_the_whole_tree() {
    let store = Store::new();
    let mut process = store.start_run(&[], "x", STUBBORN);
    process.lines_are(&["up", "up", "up"]);
    process.signal(Signal::KILL);
    assert_eq!(process.rest(), "");
}

#[test]
fn after_kill_9_the_next_one_goes_on_when_the_tree_is_gone_and_not_before() {
    let store = Store::new();
    let alive = store.path("alive");
    // All processes of the tree share descriptor 9, and with it the lock on the file `alive`.
    let script = format!("exec 9>'{}'; flock 9; {STUBBORN}", alive.display());
    for _ in 0..5 {
        let mut first = store.start_run(&[], "x", &script);
        first.lines_are(&["up", "up", "up"]);
        let check = format!("flock -n '{}' echo alone || echo overlap", alive.display());
        let mut second = store.start_run(&["--json"], "x", &check);
        second.event("waiting");
        first.signal(Signal::KILL);
        assert_eq!(second.line(), "alone");
        assert_eq!(second.code(), 0);
    }
}

#[test]
fn a_guardian_that_is_killed_takes_the_tree_with_it() {
    let store = Store::new();
    let mut process = store.start_run(&[], "x", STUBBORN);
    process.lines_are(&["up", "up", "up"]);
    let guardian = children(process.pid())[0];
    kill_process(guardian, Signal::KILL).unwrap();
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 70);
    assert_eq!(store.try_run("x"), 0);
}

#[test]
fn everything_called_tenure_gets_a_term_and_the_command_ends_properly() {
    let store = Store::new();
    let mut process = store.start_run(
        &[],
        "x",
        "trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.01; done",
    );
    process.lines_are(&["up"]);
    kill_process(children(process.pid())[0], Signal::TERM).unwrap();
    process.signal(Signal::TERM);
    process.lines_are(&["asked"]);
    assert_eq!(process.code(), 3);
}

#[test]
fn what_runs_on_in_the_background_does_not_keep_the_lock() {
    let store = Store::new();
    let mut process = store.start_run(&[], "x", "setsid sleep 1000 >/dev/null 2>&1 & echo $!");
    let background = Pid::from_raw(process.line().parse().unwrap()).unwrap();
    assert_eq!(process.code(), 0);
    assert_eq!(store.try_run("x"), 0);
    test_kill_process(background).expect("the background process runs on");
    kill_process(background, Signal::KILL).unwrap();
}

#[test]
fn max_hold_ends_the_command_and_is_no_success() {
    let store = Store::new();
    let script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut process = store.start_run(&["--max-hold", "6s"], "x", script);
    process.lines_are(&["up", "asked"]);
    assert_eq!(process.code(), 76);
    assert!(process.err_rest().contains("--max-hold"));
    let options = ["--max-hold", "6s", "--grace", "100ms"];
    let mut process = store.start_run(&options, "x", STUBBORN);
    process.lines_are(&["up", "up", "up"]);
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
    assert_eq!(store.try_run("x"), 0);
}

#[test]
fn tenure_is_stopped_and_its_guardian_keeps_the_time() {
    let store = Store::new();
    let fifo = store.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    // The tree does not write to standard output, because `tenure` itself holds that open.
    let script = format!("exec >'{}'; {STUBBORN}", fifo.display());
    let options = ["--json", "--max-hold", "6s", "--grace", "100ms"];
    let mut process = store.start_run(&options, "x", &script);
    let mut tree = BufReader::new(File::open(&fifo).unwrap());
    for _ in 0..3 {
        let mut line = String::new();
        tree.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
    }
    process.signal(Signal::STOP);
    wait_until_stopped(process.pid());
    let mut rest = String::new();
    tree.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "the tree is gone while tenure is stopped");
    process.signal(Signal::CONT);
    assert_eq!(process.code(), 76);
    assert_eq!(process.event("exit")["code"], 76);
}

#[test]
fn a_guardian_that_is_stopped_is_not_waited_for() {
    let store = Store::new();
    let options = ["--max-hold", "6s", "--grace", "100ms"];
    let mut process = store.start_run(&options, "x", STUBBORN);
    process.lines_are(&["up", "up", "up"]);
    kill_process(children(process.pid())[0], Signal::STOP).unwrap();
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
}

#[test]
fn a_lock_that_is_broken_ends_the_command() {
    let store = Store::new();
    let script = "trap 'echo asked' TERM; echo $TENURE_TOKEN; while :; do sleep 0.01; done";
    // On a busy machine the shell needs a part of the grace period before it can answer.
    let mut process = store.start_run(&["--json", "--ttl", "3s", "--grace", "1s"], "x", script);
    let token = process.line();
    assert_eq!(store.code(&["break", "x", "--token", &token]), 0);
    process.lines_are(&["asked"]);
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
    assert_eq!(process.event("lost")["names"][0], "x");
}

#[test]
fn all_names_are_held_or_none() {
    let store = Store::new();
    let mut holder = store.start(&["hold", "b"]);
    assert!(holder.line().starts_with("acquired \"b\""));
    assert_eq!(store.code(&["run", "-n", "a", "b", "c", "--", "true"]), 75);
    assert_eq!(store.code(&["run", "-n", "a", "c", "--", "true"]), 0);
}

/// The command is refused with `reason`. A message without the holder comes from a busy machine, on which the look at
/// the holder took too long; then the command runs again.
fn assert_refused(store: &Store, command: &[&str], [reason, holder]: [&str; 2]) {
    tenure_testkit::until("the message names the holder", || {
        let output = store.output(command);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(75), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(reason), "{reason}: {message}");
        message.contains(holder)
    });
}

#[test]
fn of_any_names_the_command_is_told_the_one_that_is_held() {
    let store = Store::new();
    let script = r#"printf '%s|%s|%s' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_OWNER""#;
    let _a = store.start_hold(&["a"]);
    let output = store.output(&[
        "run", "--json", "-n", "--any", "a", "b", "--", "sh", "-c", script,
    ]);
    assert_eq!(output.status.code(), Some(0));
    let acquired = next_event(&mut output.stderr.as_slice(), "acquired");
    assert_eq!(acquired["names"], serde_json::json!(["b"]));
    let token = acquired["tokens"][0].to_string();
    let owner = acquired["owner"].as_str().unwrap();
    assert_eq!(text(&output.stdout), format!("b|{token}|{owner}"));
}

#[test]
fn of_any_names_the_first_that_becomes_free_is_held() {
    let store = Store::new();
    let mut holders = ["a", "b", "c"].map(|name| {
        let mut holder = store.start(&["hold", "--any", name]);
        assert!(holder.line().starts_with(&format!("acquired \"{name}\"")));
        holder
    });
    let any = ["run", "-n", "--any", "c", "a", "b", "--", "true"];
    let words = ["none of \"c\", \"a\", \"b\" is free", "\"c\" is held by"];
    assert_refused(&store, &any, words);
    let mut waiter = store.start(&["hold", "--json", "--any", "a", "b", "c"]);
    waiter.event("waiting");
    holders[1].close_input();
    let acquired: serde_json::Value = serde_json::from_str(&waiter.line()).unwrap();
    assert_eq!(acquired["names"], serde_json::json!(["b"]));
    waiter.close_input();
    assert_eq!(waiter.code(), 0);
    assert_eq!(store.try_run("b"), 0);
}

#[test]
fn of_k_names_the_command_is_told_those_that_are_held() {
    let store = Store::new();
    let script = r#"printf '%s|%s|%s' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_OWNER""#;
    let mut b = store.start(&["hold", "b"]);
    assert!(b.line().starts_with("acquired \"b\""));
    let two = ["run", "--json", "-n", "--k-of", "2", "c", "b", "a"];
    let output = store.output(&[&two[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(0));
    let acquired = next_event(&mut output.stderr.as_slice(), "acquired");
    assert_eq!(acquired["names"], serde_json::json!(["a", "c"]));
    let lines = |values: &serde_json::Value| {
        let values = values.as_array().unwrap().iter();
        let text = |value: &serde_json::Value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        values.map(text).collect::<Vec<_>>().join("\n")
    };
    let (tokens, owners) = (lines(&acquired["tokens"]), lines(&acquired["owners"]));
    assert_eq!(text(&output.stdout), format!("a\nc|{tokens}|{owners}"));

    let three = ["run", "-n", "--k-of", "3", "c", "b", "a", "--", "true"];
    let words = ["fewer than 3 of \"c\", \"b\", \"a\"", "\"b\" is held by"];
    assert_refused(&store, &three, words);
    let mut waiter = store.start(&["hold", "--json", "--k-of", "3", "a", "b", "c"]);
    waiter.event("waiting");
    b.close_input();
    let acquired: serde_json::Value = serde_json::from_str(&waiter.line()).unwrap();
    assert_eq!(acquired["names"], serde_json::json!(["a", "b", "c"]));
    waiter.close_input();
    assert_eq!(waiter.code(), 0);
    assert_eq!(store.try_run("b"), 0);
}

#[test]
fn a_lease_that_is_never_renewed_ends_the_command() {
    let store = Store::new();
    let options = ["--renew", "never", "--ttl", "6s", "--grace", "100ms"];
    let mut process = store.start_run(&options, "x", STUBBORN);
    process.lines_are(&["up", "up", "up"]);
    assert_eq!(process.rest(), "");
    assert_eq!(process.code(), 76);
    let message = process.err_rest();
    // On a busy machine the loss may be noticed before the guardian reports that the lease is over.
    let is_said = message.contains("--renew never") || message.contains("the lease ran out");
    assert!(is_said, "{message}");
    assert_eq!(store.try_run("x"), 0);
    let mut hold = store.start(&["hold", "--renew", "never", "--ttl", "2s", "x"]);
    assert!(hold.line().starts_with("acquired"));
    assert!(hold.line().starts_with("lost \"x\""));
    assert_eq!(hold.code(), 76);
}

#[test]
fn after_a_loss_the_name_stays_reserved_and_after_a_release_it_does_not() {
    let store = Store::new();
    let run = ["run", "-n", "--lock-delay", "1h", "x", "--", "true"];
    assert_eq!(store.code(&run), 0);
    assert_eq!(store.code(&run), 0);
    let mut holder = store.start_hold(&["--lock-delay", "1h", "x"]);
    holder.signal(Signal::KILL);
    assert_eq!(holder.rest(), "");
    let output = store.output(&run);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{message}");
    assert!(message.contains("reserved"), "{message}");
}

#[test]
fn events_are_lines_of_json() {
    let store = Store::new();
    let output = store.output(&[
        "run",
        "--json",
        "b",
        "a",
        "--",
        "sh",
        "-c",
        "echo $$; exit 3",
    ]);
    assert_eq!(output.status.code(), Some(3));
    let mut err = output.stderr.as_slice();
    let acquired = next_event(&mut err, "acquired");
    assert_eq!(acquired["names"], serde_json::json!(["a", "b"]));
    assert_eq!(acquired["tokens"].as_array().unwrap().len(), 2);
    assert_eq!(acquired["owner"].as_str().unwrap().len(), 32);
    assert!(acquired["waited_ms"].is_u64());
    let started = next_event(&mut err, "started");
    assert_eq!(started["pid"].to_string(), text(&output.stdout).trim());
    next_event(&mut err, "released");
    assert_eq!(next_event(&mut err, "exit")["code"], 3);
    assert!(err.is_empty());
}

#[test]
fn at_most_one_run_per_interval() {
    let store = Store::new();
    assert_eq!(store.code(&["run", "--every", "1h", "x", "--", "true"]), 0);
    let output = store.output(&["run", "-n", "x", "--", "true"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(
        text(&output.stderr).contains("reserved"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn closed_streams_do_no_harm() {
    let store = Store::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let out = store.path("out");
    let script = format!(
        "exec {tenure} run x -- sh -c 'echo on > {}' <&- >&- 2>&-",
        out.display()
    );
    let mut command = std::process::Command::new("sh");
    let status = command
        .args(["-c", &script])
        .env("TENURE_URL", store.url())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(out).unwrap(), "on\n");
}

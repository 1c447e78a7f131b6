//! `tenure` on a pseudo-terminal that controls its session.

#![allow(clippy::unwrap_used)]

mod support;

use rustix::process::{Pid, Signal};
use support::terminal::Terminal;
use support::{Store, wait_until_stopped};

#[test]
fn the_command_reads_from_the_terminal() {
    let store = Store::new();
    let script = "echo up; read line; echo \"<$line>\"";
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "sh", "-c", script]);
    terminal.shows("up");
    terminal.press("hello\n");
    terminal.shows("<hello>");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn keys_reach_the_command_once_and_tenure_waits_for_it() {
    let store = Store::new();
    for (key, name) in [("\x03", "INT"), ("\x1c", "QUIT")] {
        let script = format!(
            "trap 'echo asked' {name}; echo up; read line; read line; echo \"<$line>\"; exit 5"
        );
        let mut terminal = Terminal::new(&store, &["run", "x", "--", "sh", "-c", &script]);
        terminal.shows("up");
        terminal.press(key);
        terminal.shows("asked");
        assert_eq!(store.try_run("x"), 75, "held on");
        terminal.press("on\non\n");
        let until_end = terminal.shows("<on>");
        assert!(!until_end.contains("asked"), "{until_end:?}");
        assert_eq!(terminal.code(), 5);
    }
}

#[test]
fn other_signals_reach_the_command_on_a_terminal_too() {
    let store = Store::new();
    let script = "trap 'echo parent; exit 9' TERM; sh -c 'trap \"echo child; exit\" TERM; echo up; while :; do sleep 0.01; done'";
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "sh", "-c", script]);
    terminal.shows("up");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&terminal.child),
        Signal::TERM,
    )
    .unwrap();
    terminal.shows("child");
    terminal.shows("parent");
    assert_eq!(terminal.code(), 9);
}

/// As a container's runtime does, which sends its stop signal to the first process only.
#[test]
fn a_signal_that_no_key_sent_reaches_the_command() {
    let store = Store::new();
    for (signal, name) in [(Signal::INT, "INT"), (Signal::QUIT, "QUIT")] {
        let script =
            format!("trap 'echo asked; exit 9' {name}; echo up; while :; do sleep 0.01; done");
        let mut terminal = Terminal::new(&store, &["run", "x", "--", "sh", "-c", &script]);
        terminal.shows("up");
        rustix::process::kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        terminal.shows("asked");
        assert_eq!(terminal.code(), 9);
    }
}

#[test]
fn kill_9_ends_the_tree_on_a_terminal_too() {
    let store = Store::new();
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "sh", "-c", support::STUBBORN]);
    for _ in 0..3 {
        terminal.shows("up");
    }
    terminal.child.kill().unwrap();
    // The terminal's other side is closed by the last process that has it open.
    terminal.rest();
}

#[test]
fn a_wait_is_told_on_one_line_that_goes_away() {
    let store = Store::new();
    let mut holder = store.start_hold(&["--label", "deploy", "x"]);
    let pid = format!("pid {}", holder.child.id());
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "echo", "ran"]);
    for _ in 0..2 {
        // The line is redrawn in place, without a line feed.
        let line = terminal.shows("\x1b[K");
        for word in [
            "\rwaiting ",
            "\"x\" is held by ",
            &pid,
            "\"deploy\"",
            "since 2",
        ] {
            assert!(line.contains(word), "{word}: {line:?}");
        }
        assert!(!line.contains('\n'), "{line:?}");
    }
    holder.close_input();
    let before = terminal.shows("ran");
    assert!(before.ends_with("\r\x1b[Kran"), "{before:?}");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn ctrl_c_ends_a_wait_at_once() {
    let store = Store::new();
    let _holder = store.start_hold(&["x"]);
    let mut terminal = Terminal::new(&store, &["run", "x", "--", "echo", "ran"]);
    terminal.shows("waiting ");
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    let rest = terminal.rest();
    assert!(
        rest.ends_with("\r\x1b[K") && !rest.contains("ran"),
        "{rest:?}"
    );
}

#[test]
fn standing_by_is_told_on_one_line_and_ctrl_c_ends_it() {
    let store = Store::new();
    let mut holder = store.start_hold(&["x"]);
    let arguments = [
        "run",
        "--standby",
        "--restart",
        "x",
        "--",
        "sh",
        "-c",
        "echo ran; read line",
    ];
    let mut terminal = Terminal::new(&store, &arguments);
    let line = terminal.shows("is held by ");
    assert!(line.contains("\rstanding by "), "{line:?}");
    holder.close_input();
    terminal.shows("ran");
    terminal.press("again\n");
    // The command has ended by itself, and leads again after a pause.
    terminal.shows("ran");
    // The key reaches the command, and no other one is started.
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    let _holder = store.start_hold(&["x"]);
    let mut terminal = Terminal::new(&store, &arguments);
    terminal.shows("standing by ");
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    let rest = terminal.rest();
    assert!(rest.ends_with("\r\x1b[K"), "{rest:?}");
}

#[test]
fn quiet_draws_nothing() {
    let store = Store::new();
    let _holder = store.start_hold(&["x"]);
    let arguments = ["run", "-q", "--wait", "1500ms", "x", "--", "true"];
    let mut terminal = Terminal::new(&store, &arguments);
    assert_eq!(terminal.code(), 75);
    assert_eq!(terminal.rest(), "");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on() {
    let store = Store::new();
    let script = "echo p\"\"id $$; read line; echo \"<$line>\"";
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let mut shell = Terminal::of(&store, &["bash", "--norc", "--noprofile", "-i"]);
    // Keys that are typed before the shell has set up the terminal for its first prompt may be lost.
    shell.shows("first> ");
    shell.press("stty -echo; PS1='g''o> '\n");
    shell.shows("go> ");
    shell.press(&format!("{tenure} run x -- sh -c '{script}'\n"));
    shell.shows("pid ");
    let reader: i32 = shell.shows("\r\n").trim().parse().unwrap();
    shell.press("\x1a");
    shell.shows("Stopped");
    shell.shows("go> ");
    // A process that has not handled its stop signal yet would read the next key.
    wait_until_stopped(Pid::from_raw(reader).unwrap());
    // The shell has the terminal again, and the lock is still held.
    shell.press("echo s\"\"hell\n");
    shell.shows("shell\r\n");
    shell.shows("go> ");
    assert_eq!(store.try_run("x"), 75);
    shell.press("fg\n");
    shell.shows("run x");
    shell.press("hello\n");
    shell.shows("<hello>");
    shell.shows("go> ");
    shell.press("exit 3\n");
    assert_eq!(shell.code(), 3);
}

/// A read of the terminal would stop the job, and a lease would end.
#[test]
fn a_hold_in_the_background_of_a_shell_goes_on() {
    let store = Store::new();
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let mut shell = Terminal::of(&store, &["bash", "--norc", "--noprofile", "-i"]);
    shell.shows("first> ");
    shell.press("stty -echo; PS1='g''o> '\n");
    shell.shows("go> ");
    shell.press(&format!("{tenure} hold x &\n"));
    shell.shows("acquired \"x\"");
    // A job that is stopped does not end before it goes on. With `%1`, the shell would let it go on.
    shell.press("kill -TERM $!; wait $!; echo co\"\"de $?\n");
    shell.shows("released \"x\"");
    shell.shows("code 0");
    assert_eq!(store.try_run("x"), 0);
    shell.press("exit 3\n");
    assert_eq!(shell.code(), 3);
}

#[test]
fn watch_draws_a_table_and_ends_on_ctrl_c() {
    let store = Store::new();
    let mut holder = store.start_hold(&["x"]);
    let mut terminal = Terminal::new(&store, &["watch", "--interval", "50ms"]);
    terminal.shows("1 held");
    terminal.shows(&holder.child.id().to_string());
    holder.close_input();
    terminal.shows("0 held");
    terminal.press("\x03");
    assert_eq!(terminal.code(), 0);
}

//! A lease that nobody renews any more: the command's whole tree is gone before the next holder can come.

use rustix::process::Signal;

use crate::support::signs::{Signs, TTL, TTL_NANOS, now};
use crate::support::wait_until_stopped;
use crate::{On, on_each};

on_each![
    tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes,
    tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes,
    a_server_that_stands_still_longer_than_the_lease_ends_the_command,
    a_server_that_is_killed_ends_the_command_by_the_deadline,
    a_healthy_lease_is_renewed_for_as_long_as_the_command_runs,
];

fn tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes(on: &On) {
    let signs = Signs(on);
    let mut first = signs.start_first(&[]);
    let mut second = signs.start_second(|| on.until_waiting("x", 1));
    first.signal(Signal::STOP);
    wait_until_stopped(first.pid());
    signs.assert_alone(&mut second);
    first.signal(Signal::CONT);
    // It had its warning, in spite of the stop.
    first.lines_are(&["asked"]);
    assert_eq!(first.code(), 76);
    assert_eq!(first.event("exit")["code"], 76);
}

fn tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes(on: &On) {
    let signs = Signs(on);
    let mut first = signs.start_first(&[]);
    let mut second = signs.start_second(|| on.until_waiting("x", 1));
    first.signal(Signal::KILL);
    assert_eq!(first.rest(), "", "no TERM: nobody is left to wait for");
    if on.server.is_session() {
        // The server gives it away as the connection ends, while the guardian is at it: the README says so. By now the
        // tree is gone, and the next one has met it or has not.
        second.line();
        assert!(matches!(second.line().as_str(), "alone" | "overlap"));
        assert_eq!(second.code(), 0);
        return;
    }
    signs.assert_alone(&mut second);
}

fn a_server_that_stands_still_longer_than_the_lease_ends_the_command(on: &On) {
    let signs = Signs(on);
    let mut first = signs.start_first(&[]);
    on.server.stop();
    let stopped = now();
    first.lines_are(&["asked"]);
    assert_eq!(first.rest(), "");
    assert_eq!(first.code(), 76);
    assert_eq!(first.event("exit")["code"], 76);
    // Whatever the server granted it had granted before it was stopped.
    assert!(signs.last() < stopped + TTL_NANOS);
    on.server.resume();
    let mut second = on.start_run(&["--json", "--ttl", TTL], "x", &signs.look());
    signs.assert_alone(&mut second);
}

fn a_server_that_is_killed_ends_the_command_by_the_deadline(on: &On) {
    let signs = Signs(on);
    let mut first = signs.start_first(&[]);
    on.server.kill();
    let killed = now();
    first.lines_are(&["asked"]);
    assert_eq!(first.rest(), "");
    assert_eq!(first.code(), 76);
    assert!(signs.last() < killed + TTL_NANOS);
}

fn a_healthy_lease_is_renewed_for_as_long_as_the_command_runs(on: &On) {
    let script = "trap 'echo asked' TERM; echo $TENURE_OWNER; sleep 5; exit 7";
    let mut talk = on.start_run(&["--json", "--ttl", TTL], "x", script);
    let owner = talk.line();
    let rest = talk.rest();
    assert_eq!(rest, "", "{}", talk.err_rest());
    assert_eq!(talk.code(), 7);
    assert_eq!(talk.event("acquired")["owner"], owner.as_str());
    talk.event("released");
    assert!(on.is_free("x"));
}

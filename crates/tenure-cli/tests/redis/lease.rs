//! A lease that is not renewed any more: all processes of the command are gone before the next holder gets the lock.

use rustix::process::{Signal, kill_process};

use crate::support::scenarios::ServerStore;
use crate::support::stubborn_tree::{StubbornTree, TTL};
use crate::support::{children, wait_until_stopped};
use crate::{RedisStore, on_redis};
use tenure_testkit::until;

on_redis![
    tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes,
    tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes,
    a_server_that_stands_still_longer_than_the_lease_ends_the_command,
    a_server_that_is_killed_ends_the_command_by_the_deadline,
    a_healthy_lease_is_renewed_for_as_long_as_the_command_runs,
];

#[test]
fn a_server_that_forgets_at_its_restart_gives_the_name_away_when_the_tree_is_gone() {
    let Some(store) = RedisStore::start_with("restart_guard=4s") else {
        return;
    };
    let tree = StubbornTree(&store);
    let mut first = tree.start_first(&[]);
    store.server.restart();
    let mut second = store.start_run(&["--ttl", TTL], "x", &tree.overlap_check());
    tree.assert_alone(&mut second);
    assert_eq!(first.rest(), "asked\n");
    assert_eq!(first.code(), 76);
}

#[test]
fn a_grant_that_was_slept_through_runs_nothing() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let mut first = store.start_run(&["--ttl", TTL], "x", "echo up; read line");
    first.lines_are(&["up"]);
    let mut sleeper = store.start_run(&["--json", "--ttl", TTL], "x", "echo woken");
    sleeper.event("waiting");
    sleeper.signal(Signal::STOP);
    wait_until_stopped(sleeper.pid());
    first.write_line("go");
    assert_eq!(first.code(), 0);
    // Now the stopped process has the lock, until its lease is over.
    let mut third = store.start_run(&["--ttl", TTL], "x", "echo third; read line");
    third.lines_are(&["third"]);
    sleeper.signal(Signal::CONT);
    store.until_waiting("x", 1);
    third.write_line("go");
    assert_eq!(third.code(), 0);
    assert_eq!(sleeper.rest(), "woken\n");
    assert_eq!(sleeper.code(), 0);
}

#[test]
fn a_lease_that_was_lost_before_the_start_runs_nothing() {
    let Some(store) = RedisStore::start() else {
        return;
    };
    let mut first = store.start_run(&["--ttl", TTL], "x", "echo up; read line");
    first.lines_are(&["up"]);
    let mut second = store.start_run(&["--json", "--ttl", TTL], "x", "echo ran");
    second.event("waiting");
    // The guardian has started and waits for its instruction, which comes too late.
    let guardian = children(second.pid())[0];
    kill_process(guardian, Signal::STOP).unwrap();
    wait_until_stopped(guardian);
    first.write_line("go");
    assert_eq!(first.code(), 0);
    second.event("acquired");
    second.signal(Signal::STOP);
    wait_until_stopped(second.pid());
    until("the lease is over", || !store.has("x"));
    kill_process(guardian, Signal::CONT).unwrap();
    second.signal(Signal::CONT);
    assert_eq!(second.rest(), "");
    assert_eq!(second.code(), 76);
    assert_eq!(second.event("exit")["code"], 76);
}

//! A lease that is not renewed any more: all processes of the command are gone before the next holder gets the lock.

use crate::on_each;
use crate::support::scenarios::{
    a_healthy_lease_is_renewed_for_as_long_as_the_command_runs,
    a_server_that_is_killed_ends_the_command_by_the_deadline,
    a_server_that_stands_still_longer_than_the_lease_ends_the_command,
    tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes,
    tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes,
};

on_each![
    tenure_is_stopped_and_the_tree_is_gone_before_the_next_one_comes,
    tenure_is_killed_and_the_tree_is_gone_before_the_next_one_comes,
    a_server_that_stands_still_longer_than_the_lease_ends_the_command,
    a_server_that_is_killed_ends_the_command_by_the_deadline,
    a_healthy_lease_is_renewed_for_as_long_as_the_command_runs,
];

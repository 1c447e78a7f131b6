//! The list of all behaviours.

use super::behaviour::Behaviour;
use super::{
    detached, detached_faults, election, election_faults, election_observers, election_refusals,
    election_requests, election_run, ending, faults, holding, identity, many, mode_matrix, modes,
    names, needs, reentrance, upgrade, waiting,
};

/// One line per behaviour: `theme::name`, the number of the rule, and what the behaviour needs of store and harness.
macro_rules! behaviours {
    ($($theme:ident::$name:ident, $rule:literal, $($needs:ident)&+;)*) => {
        /// All behaviours, in the order of the rules.
        pub const BEHAVIOURS: &[Behaviour] = &[$(Behaviour {
            name: concat!(stringify!($theme), "::", stringify!($name)),
            rule: $rule,
            needed: &[$(stringify!($needs)),+],
            needs: |guarantees, harness| {
                $(needs::$needs(guarantees, harness)?;)+
                Ok(())
            },
            run: |case| Box::pin($theme::$name(case)),
        }),*];
    };
}

behaviours! {
    holding::one_holder_among_a_hundred_contenders, "1", nothing;
    holding::claims_never_overlap_when_a_lease_runs_out, "1", leases;
    holding::the_deadline_lies_a_margin_before_the_end_of_the_lease, "2", leases;
    holding::the_deadline_counts_from_before_the_request, "2", leases & lost_requests;
    holding::a_reply_after_the_deadline_is_no_grant, "2", leases & lost_requests;
    holding::a_ttl_too_short_for_the_round_trip_is_refused, "2", leases & lost_requests;
    holding::an_error_on_renewal_is_neither_loss_nor_success, "2", leases & lost_requests & outlives_connections;
    holding::a_lease_does_not_run_out_while_it_waits, "3", leases;
    holding::a_hold_outlasts_many_leases, "4", nothing;
    holding::many_holds_are_renewed_by_few_requests, "4", leases & requests;
    holding::one_failing_hold_does_not_stop_the_others, "4", evict;
    holding::renewal_ends_with_the_guard, "4", leases & requests;
    holding::a_fixed_lease_ends, "4", nothing;
    holding::max_hold_ends_a_hold, "4", nothing;
    holding::a_claim_ends_in_time_though_the_runtime_is_stuck, "5", nothing;
    holding::lost_never_fires_on_release, "5", nothing;
    holding::a_refused_renewal_is_a_loss_and_never_resurrects, "5", evict;
    holding::run_returns_the_value_and_releases, "6", nothing;
    holding::run_is_cancelled_when_the_lock_is_lost, "6", nothing;
    holding::a_lost_run_cannot_look_like_success, "6", nothing;
    holding::tokens_grow_over_grants, "7", nothing;
    holding::tokens_grow_over_expiry, "7", nothing;
    holding::tokens_grow_over_eviction, "7", evict;
    holding::no_two_holders_have_the_same_token, "7", shared;

    waiting::a_wait_is_kept_and_names_the_holder, "12", nothing;
    waiting::a_zero_wait_is_one_try, "12", nothing;
    waiting::an_unset_wait_is_for_ever, "12", nothing;
    waiting::no_wake_up_is_lost, "8", nothing;
    waiting::one_remote_contender_per_client_and_name, "9", nothing;
    waiting::tasks_of_a_client_are_served_in_order, "9", nothing;
    waiting::clients_are_served_in_order, "10", fair;
    waiting::a_release_wakes_one, "10", nothing;
    waiting::closing_a_client_ends_its_waits, "12", nothing;
    waiting::a_waiter_that_gives_up_is_skipped, "11", nothing;
    waiting::a_future_that_nobody_polls_holds_up_nobody_else, "4", nothing;

    ending::a_release_frees_at_once, "13", nothing;
    ending::a_stale_release_frees_nobody_else, "13", evict;
    ending::a_release_after_loss_is_an_error, "13", nothing;
    ending::a_release_without_an_answer_is_typed_and_repeated, "13", lost_requests;
    ending::break_lock_ends_exactly_that_hold, "13", nothing;
    ending::closing_a_client_ends_its_holds, "5", nothing;
    ending::a_dropped_guard_releases, "14", nothing;
    ending::a_dropped_guard_is_released_before_close_returns, "14", nothing;
    ending::a_guard_dropped_outside_the_runtime_releases, "14", nothing;
    ending::a_guard_may_outlive_its_runtime, "14", nothing;
    ending::a_dropped_release_goes_on, "14", nothing;
    ending::a_dropped_acquire_leaves_nothing, "15", nothing;
    ending::an_acquire_dropped_at_any_poll_leaves_nothing, "15", nothing;
    ending::an_acquire_dropped_while_it_is_granted_leaves_nothing, "15", nothing;
    ending::an_acquire_without_an_answer_leaves_nothing, "15", lost_requests;
    ending::an_acquire_that_hangs_leaves_nothing, "15", lost_requests;
    ending::an_expired_hold_is_taken_over, "16", nothing;
    ending::min_hold_keeps_the_name_taken, "16a", min_hold;
    ending::lock_delay_reserves_after_an_unclean_end, "16a", lock_delay;
    ending::a_late_release_keeps_the_lock_delay, "16a", lock_delay;
    ending::lock_delay_does_not_reserve_after_a_release, "16a", lock_delay;

    names::names_do_not_interact, "17", nothing;
    names::names_differ_by_case, "17", nothing;
    names::hostile_names_are_all_distinct, "17", nothing;
    names::long_names_are_told_apart_by_every_byte, "17", nothing;
    names::a_prefix_is_taken_literally, "17", nothing;
    names::control_characters_are_escaped, "17", nothing;

    identity::the_holder_is_visible, "18", nothing;
    identity::each_client_has_its_own_id, "18", nothing;
    identity::list_shows_what_is_held, "18", nothing;
    identity::errors_say_what_and_where, "19", nothing;
    identity::no_error_holds_the_password, "19", secret;
    identity::what_is_wrong_is_refused_before_any_request, "20", nothing;
    identity::what_is_unsupported_is_refused_before_any_request, "20", something_unsupported;
    identity::a_closed_client_says_so, "19", nothing;

    reentrance::a_lock_is_not_reentrant_by_default, "21", nothing;
    reentrance::an_owner_enters_again_and_the_last_exit_releases, "21", nothing;
    reentrance::entering_again_costs_no_request, "21", requests;
    reentrance::two_owners_exclude_each_other, "21", nothing;
    reentrance::a_scope_is_an_owner_and_a_spawned_task_is_outside, "21", nothing;
    reentrance::tasks_of_one_owner_share_one_hold, "21", nothing;
    reentrance::a_run_may_be_nested, "21", nothing;
    reentrance::a_lost_hold_is_not_entered_again, "21", nothing;
    reentrance::a_shared_hold_is_not_upgraded, "21", shared;

    modes::shared_holders_go_together, "1", shared;
    modes::readers_and_a_writer_never_meet, "1", shared;
    modes::a_writer_is_not_starved, "10", shared & fair;
    modes::a_reader_does_not_overtake_a_waiting_writer, "10", shared & fair;
    modes::permits_never_exceed_their_limit, "1", permits;
    modes::a_permit_goes_to_the_next_waiter, "8", permits;
    modes::permits_and_exclusive_never_meet, "1", permits;

    mode_matrix::no_two_holders_conflict, "1", nothing;
    mode_matrix::a_queue_of_all_modes_is_served_in_order, "10", fair;
    mode_matrix::tokens_grow_from_mode_to_mode, "7", nothing;
    mode_matrix::each_holder_is_shown_with_its_mode, "18", nothing;
    mode_matrix::one_of_several_holders_is_broken, "13", nothing;

    upgrade::an_upgradable_holder_goes_with_shared_holders, "1", upgradable;
    upgrade::an_upgrade_lets_no_writer_in_between, "10", upgradable;
    upgrade::tokens_grow_over_an_upgrade_for_all_who_waited, "7", upgradable;
    upgrade::readers_who_waited_for_an_upgraded_holder_come_in_together, "7", upgradable & fair;
    upgrade::an_upgraded_hold_is_broken_by_its_new_token, "13", upgradable;
    upgrade::an_upgrade_without_other_holders_is_immediate, "7", upgradable;
    upgrade::a_dropped_upgrade_leaves_an_upgradable_hold, "15", upgradable;
    upgrade::an_upgrade_without_an_answer_leaves_an_upgradable_hold, "15", upgradable & lost_requests & outlives_connections;
    upgrade::an_upgrade_ends_with_its_hold, "5", upgradable;
    upgrade::a_downgrade_lets_readers_in, "10", upgradable;
    upgrade::a_change_of_mode_that_cannot_be_is_refused, "20", upgradable;

    many::lock_all_is_all_or_none, "1", nothing;
    many::names_that_are_given_back_are_not_reserved, "15", min_hold;
    many::lock_all_in_any_order_does_not_deadlock, "1", nothing;
    many::lock_all_is_lost_when_one_is, "5", nothing;
    many::lock_all_notices_a_loss_while_it_waits, "3", nothing;
    many::lock_all_keeps_one_wait_for_all, "12", nothing;
    many::a_dropped_lock_all_leaves_nothing, "15", nothing;
    many::lock_all_at_once_and_one_by_one_exclude_each_other, "1", nothing;
    many::lock_all_does_not_overtake_a_waiter, "10", fair;
    many::lock_all_without_an_answer_leaves_nothing, "15", lost_requests;
    many::lock_any_takes_whichever_is_free, "1", nothing;
    many::lock_any_waits_for_whichever_comes_first, "8", nothing;
    many::a_dropped_lock_any_leaves_nothing, "15", nothing;
    many::k_of_takes_k_names_or_none, "1", nothing;
    many::k_of_waits_until_k_names_are_free, "8", nothing;
    many::k_of_in_many_clients_does_not_deadlock, "1", nothing;
    many::k_of_does_not_block_others_with_what_it_cannot_use, "8", fair;
    many::a_dropped_k_of_leaves_nothing, "15", nothing;

    faults::a_killed_holder_frees_the_lock, "16", processes;
    faults::a_killed_holder_in_each_mode_frees_its_place, "16", processes;
    faults::tokens_grow_over_crashes, "7", processes;
    faults::lock_delay_reserves_after_a_crash, "16a", processes & lock_delay;
    faults::min_hold_outlives_its_holder, "16a", processes & min_hold;
    faults::a_killed_waiter_does_not_block_the_queue, "11", processes;
    faults::a_killed_waiter_in_each_mode_is_skipped, "11", processes;
    faults::a_stopped_waiter_does_not_keep_the_lock_from_others, "11", processes;
    faults::a_paused_holder_behaves_as_promised, "5", processes & survives_pause;
    faults::processes_exclude_each_other, "1", processes;
    faults::a_holder_in_another_process_is_visible, "18", processes;
    faults::lost_fires_by_the_deadline_of_a_silent_store, "5", leases & pausing;
    faults::a_silent_store_never_grants, "12", pausing;
    faults::a_silent_store_is_not_called_busy, "12", pausing;
    faults::a_broken_connection_does_not_end_a_lease, "5", connections & leases & outlives_connections;
    faults::a_broken_connection_is_noticed, "5", connections;
    faults::a_wiped_store_is_noticed_and_tokens_grow, "7", wiping;
    faults::a_restarted_store_keeps_its_promise, "7a", restarting;

    election::one_leader_at_a_time, "1", elections;
    election::a_lock_and_an_election_of_one_name_exclude_each_other, "1", elections;
    election::a_resignation_hands_over_to_the_next_candidate, "10", elections;
    election::a_former_leader_publishes_nothing, "13", elections;
    election::a_dropped_campaign_leaves_nothing, "15", elections;
    election::hostile_names_are_elections_of_their_own, "17", elections;
    election::a_value_is_there_from_the_grant_on_and_survives_renewals, "18", elections;
    election::any_value_comes_back, "18", elections;
    election::nobody_leads_after_the_end_of_a_term, "18", elections;

    election_observers::an_observer_begins_with_who_leads_now, "18", elections;
    election_observers::observers_see_each_value_in_order, "18", elections;
    election_observers::observers_see_that_nobody_leads, "18", elections;
    election_observers::an_observer_that_is_slow_goes_forward, "18", elections;
    election_observers::a_dropped_wait_for_the_next_leader_misses_nothing, "15", elections;

    election_requests::a_leader_is_asked_to_resign_and_decides, "8", elections;
    election_requests::a_request_before_the_leader_waits_for_it_counts, "8", elections;
    election_requests::a_request_is_told_without_a_wait, "8", elections;
    election_requests::a_request_never_reaches_a_later_leader, "13", elections;
    election_requests::the_holder_of_a_lock_is_asked_to_release, "8", elections;

    election_run::run_returns_to_the_queue_after_a_loss, "6", elections;
    election_run::run_ends_with_its_body_and_not_with_its_failure, "6", elections;
    election_run::closing_a_client_ends_its_elections, "12", elections;

    election_refusals::what_is_wrong_is_refused_before_any_request, "20", elections;
    election_refusals::a_store_without_elections_refuses_before_any_request, "20", no_elections;

    election_faults::a_killed_leader_is_followed, "16", processes & elections;
    election_faults::a_leader_in_another_process_is_seen_and_asked, "18", processes & elections;
    election_faults::a_stopped_leader_is_followed_and_leads_no_more, "5", processes & leases & survives_pause & elections;
    election_faults::a_value_outlasts_a_broken_connection, "5", connections & leases & outlives_connections & elections;
    election_faults::a_leader_of_a_silent_store_is_followed, "5", leases & pausing & elections;
    election_faults::observers_see_the_order_though_requests_get_lost, "18", lost_requests & elections;
    election_faults::observers_see_the_order_though_connections_break, "18", connections & elections;
    election_faults::observers_outlast_a_restart_of_the_store, "7a", restarting & elections;

    detached::a_hold_outlives_its_client, "5", detach;
    detached::a_hold_that_is_not_attached_ends_with_its_lease, "16", detach;
    detached::no_request_shortens_the_lease, "2", detach;
    detached::a_release_wakes_the_next_waiter, "8", detach;
    detached::a_wrong_receipt_touches_nothing, "13", detach;
    detached::what_was_released_cannot_be_attached, "5", detach;
    detached::a_release_by_one_ends_the_hold_for_all, "5", detach;
    detached::a_closed_client_leaves_the_hold_to_the_others, "13", detach;
    detached::the_holder_is_shown_without_its_client, "18", detach;
    detached::a_broken_hold_is_lost_for_all, "13", detach;
    detached::several_names_have_one_receipt, "1", detach;
    detached::min_hold_counts_from_the_grant, "16a", min_hold & detach;
    detached::lock_delay_reserves_after_the_lease, "16a", lock_delay & detach;
    detached::what_is_wrong_is_refused_before_any_request, "20", detach;
    detached::what_cannot_be_detached_is_refused_and_released, "20", modes_not_detached;

    detached_faults::a_hold_goes_from_process_to_process, "5", processes & detach;
    detached_faults::an_attached_hold_outlasts_a_broken_connection, "5", connections & detach;
    detached_faults::a_client_of_a_silent_store_leaves_the_hold_to_the_others, "13", pausing & detach;
    detached_faults::what_is_given_up_in_a_silent_store_is_cleaned_up, "15", pausing & detach;
}

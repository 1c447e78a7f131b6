//! The behaviours that a store cannot show, each group with its reason.

#![allow(dead_code, reason = "without some features nobody needs all of it")]

pub(crate) type Skips = (&'static str, &'static [&'static str]);

pub(crate) const NO_LEASE: Skips = (
    "no lease runs in this store",
    &[
        "holding::claims_never_overlap_when_a_lease_runs_out",
        "holding::the_deadline_lies_a_margin_before_the_end_of_the_lease",
        "holding::the_deadline_counts_from_before_the_request",
        "holding::a_reply_after_the_deadline_is_no_grant",
        "holding::a_ttl_too_short_for_the_round_trip_is_refused",
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
        "holding::a_lease_does_not_run_out_while_it_waits",
        "holding::many_holds_are_renewed_by_few_requests",
        "holding::renewal_ends_with_the_guard",
        "faults::lost_fires_by_the_deadline_of_a_silent_store",
        "election_faults::a_stopped_leader_is_followed_and_leads_no_more",
        "election_faults::a_leader_of_a_silent_store_is_followed",
    ],
);

pub(crate) const NO_LOST_REQUESTS: Skips = (
    "no request to this store can get lost",
    &[
        "ending::a_release_without_an_answer_is_typed_and_repeated",
        "ending::an_acquire_without_an_answer_leaves_nothing",
        "many::lock_all_without_an_answer_leaves_nothing",
        "ending::an_acquire_that_hangs_leaves_nothing",
        "election_faults::observers_see_the_order_though_requests_get_lost",
    ],
);

/// Behaviours that a store without leases does not have either.
pub(crate) const NO_LOST_REQUESTS_OF_LEASES: Skips = (
    NO_LOST_REQUESTS.0,
    &[
        "holding::the_deadline_counts_from_before_the_request",
        "holding::a_reply_after_the_deadline_is_no_grant",
        "holding::a_ttl_too_short_for_the_round_trip_is_refused",
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
    ],
);

pub(crate) const NO_COUNT: Skips = (
    "requests to this store cannot be counted",
    &["reentrance::entering_again_costs_no_request"],
);

pub(crate) const NO_COUNT_OF_LEASES: Skips = (
    NO_COUNT.0,
    &[
        "holding::many_holds_are_renewed_by_few_requests",
        "holding::renewal_ends_with_the_guard",
    ],
);

pub(crate) const NO_EVICTION: Skips = (
    "nothing but `break_lock` takes a hold away in this store",
    &[
        "holding::one_failing_hold_does_not_stop_the_others",
        "holding::a_refused_renewal_is_a_loss_and_never_resurrects",
        "holding::tokens_grow_over_eviction",
        "ending::a_stale_release_frees_nobody_else",
    ],
);

pub(crate) const NO_SHARED: Skips = (
    "no shared holds",
    &[
        "holding::no_two_holders_have_the_same_token",
        "reentrance::a_shared_hold_is_not_upgraded",
        "modes::shared_holders_go_together",
        "modes::readers_and_a_writer_never_meet",
        "modes::a_writer_is_not_starved",
        "modes::a_reader_does_not_overtake_a_waiting_writer",
    ],
);

pub(crate) const NO_UPGRADABLE: Skips = (
    "no upgradable holds",
    &[
        "upgrade::an_upgradable_holder_goes_with_shared_holders",
        "upgrade::an_upgrade_lets_no_writer_in_between",
        "upgrade::tokens_grow_over_an_upgrade_for_all_who_waited",
        "upgrade::readers_who_waited_for_an_upgraded_holder_come_in_together",
        "upgrade::an_upgraded_hold_is_broken_by_its_new_token",
        "upgrade::an_upgrade_without_other_holders_is_immediate",
        "upgrade::a_dropped_upgrade_leaves_an_upgradable_hold",
        "upgrade::an_upgrade_without_an_answer_leaves_an_upgradable_hold",
        "upgrade::an_upgrade_ends_with_its_hold",
        "upgrade::a_downgrade_lets_readers_in",
        "upgrade::a_change_of_mode_that_cannot_be_is_refused",
    ],
);

/// For a store that has upgradable holds.
pub(crate) const NO_LOST_UPGRADES: Skips = (
    NO_LOST_REQUESTS.0,
    &["upgrade::an_upgrade_without_an_answer_leaves_an_upgradable_hold"],
);

pub(crate) const NO_PERMITS: Skips = (
    "no permits",
    &[
        "modes::permits_never_exceed_their_limit",
        "modes::a_permit_goes_to_the_next_waiter",
        "modes::permits_and_exclusive_never_meet",
    ],
);

pub(crate) const NO_ORDER: Skips = (
    "no order of waiters is promised",
    &[
        "waiting::clients_are_served_in_order",
        "mode_matrix::a_queue_of_all_modes_is_served_in_order",
        "many::k_of_does_not_block_others_with_what_it_cannot_use",
        "many::lock_all_does_not_overtake_a_waiter",
    ],
);

/// For a store without an order that has shared holds.
pub(crate) const NO_ORDER_OF_READERS: Skips = (
    NO_ORDER.0,
    &[
        "modes::a_writer_is_not_starved",
        "modes::a_reader_does_not_overtake_a_waiting_writer",
    ],
);

/// For a store without an order that has upgradable holds.
pub(crate) const NO_ORDER_AFTER_UPGRADES: Skips = (
    NO_ORDER.0,
    &["upgrade::readers_who_waited_for_an_upgraded_holder_come_in_together"],
);

/// Of sessions in PostgreSQL.
pub(crate) const UPGRADABLE_OUTSIDE_THE_QUEUE: Skips = (
    "requests for upgradable holds wait for each other outside the queue of the lock",
    &["mode_matrix::a_queue_of_all_modes_is_served_in_order"],
);

/// Of Redisson's semaphore.
pub(crate) const ONE_PERMIT: Skips = (
    "an exclusive hold is the only permit of one, and another number of permits is an error",
    &[
        "modes::permits_and_exclusive_never_meet",
        "mode_matrix::no_two_holders_conflict",
        "mode_matrix::tokens_grow_from_mode_to_mode",
        "mode_matrix::one_of_several_holders_is_broken",
        "faults::a_killed_holder_in_each_mode_frees_its_place",
        "faults::a_killed_waiter_in_each_mode_is_skipped",
        "detached::what_cannot_be_detached_is_refused_and_released",
    ],
);

/// Of Redisson's semaphore.
pub(crate) const ONE_SET_OF_PERMITS: Skips = (
    "Redisson keeps the permits of `x` and of `{x}` in one set",
    &["names::hostile_names_are_all_distinct"],
);

pub(crate) const NO_MIN_HOLD: Skips = (
    "no `min_hold`",
    &[
        "ending::min_hold_keeps_the_name_taken",
        "detached::min_hold_counts_from_the_grant",
        "many::names_that_are_given_back_are_not_reserved",
        "faults::min_hold_outlives_its_holder",
    ],
);

pub(crate) const NO_LOCK_DELAY: Skips = (
    "no `lock_delay`",
    &[
        "ending::lock_delay_reserves_after_an_unclean_end",
        "ending::a_late_release_keeps_the_lock_delay",
        "ending::lock_delay_does_not_reserve_after_a_release",
        "faults::lock_delay_reserves_after_a_crash",
        "detached::lock_delay_reserves_after_the_lease",
    ],
);

pub(crate) const NEVER_SILENT: Skips = (
    "this store cannot fall silent",
    &[
        "faults::a_silent_store_never_grants",
        "faults::a_silent_store_is_not_called_busy",
        "detached_faults::a_client_of_a_silent_store_leaves_the_hold_to_the_others",
        "detached_faults::what_is_given_up_in_a_silent_store_is_cleaned_up",
    ],
);

pub(crate) const NO_PROCESSES: Skips = (
    "no other process can reach this store",
    &[
        "faults::a_killed_holder_frees_the_lock",
        "faults::a_killed_holder_in_each_mode_frees_its_place",
        "faults::tokens_grow_over_crashes",
        "faults::lock_delay_reserves_after_a_crash",
        "faults::min_hold_outlives_its_holder",
        "faults::a_killed_waiter_does_not_block_the_queue",
        "faults::a_killed_waiter_in_each_mode_is_skipped",
        "faults::a_stopped_waiter_does_not_keep_the_lock_from_others",
        "faults::a_paused_holder_behaves_as_promised",
        "faults::processes_exclude_each_other",
        "faults::a_holder_in_another_process_is_visible",
        "election_faults::a_killed_leader_is_followed",
        "election_faults::a_leader_in_another_process_is_seen_and_asked",
        "election_faults::a_stopped_leader_is_followed_and_leads_no_more",
        "detached_faults::a_hold_goes_from_process_to_process",
    ],
);

pub(crate) const NO_CONNECTION: Skips = (
    "there is no connection to this store",
    &[
        "faults::a_broken_connection_does_not_end_a_lease",
        "faults::a_broken_connection_is_noticed",
        "election_faults::a_value_outlasts_a_broken_connection",
        "election_faults::observers_see_the_order_though_connections_break",
        "detached_faults::an_attached_hold_outlasts_a_broken_connection",
    ],
);

pub(crate) const NO_RESTART: Skips = (
    "this store cannot be restarted",
    &[
        "faults::a_restarted_store_keeps_its_promise",
        "election_faults::observers_outlast_a_restart_of_the_store",
    ],
);

pub(crate) const NO_WIPE: Skips = (
    "this store forgets nothing while it runs",
    &["faults::a_wiped_store_is_noticed_and_tokens_grow"],
);

pub(crate) const NO_PASSWORD: Skips = (
    "there is no password for this store",
    &["identity::no_error_holds_the_password"],
);

/// Of a store that has each capability.
pub(crate) const CAN_EVERYTHING: &[Skips] = &[
    (
        "this store can do everything",
        &["identity::what_is_unsupported_is_refused_before_any_request"],
    ),
    HAS_ELECTIONS,
    DETACHES_EACH_MODE,
];

/// Of a store without elections: each behaviour that is skipped for this reason.
pub(crate) const NO_ELECTIONS: Skips = ("no elections", &[]);

/// Of a store with elections.
pub(crate) const HAS_ELECTIONS: Skips = (
    "this store has elections",
    &["election_refusals::a_store_without_elections_refuses_before_any_request"],
);

/// Of a store whose holds end with their client: each behaviour that is skipped for this reason.
pub(crate) const NO_DETACH: Skips = ("no detached holds", &[]);

/// Of a store that detaches holds of each mode that it has.
pub(crate) const DETACHES_EACH_MODE: Skips = (
    "this store detaches holds of each mode",
    &["detached::what_cannot_be_detached_is_refused_and_released"],
);

pub(crate) const ENDS_WITH_ITS_CONNECTION: Skips = (
    "a hold of this store ends with its connection",
    &[
        "holding::an_error_on_renewal_is_neither_loss_nor_success",
        "faults::a_broken_connection_does_not_end_a_lease",
        "upgrade::an_upgrade_without_an_answer_leaves_an_upgradable_hold",
        "election_faults::a_value_outlasts_a_broken_connection",
    ],
);

/// For a store without a proxy, which would count its requests and lose some of them.
pub(crate) const NO_PROXY: &[Skips] = &[
    NO_LOST_REQUESTS,
    NO_LOST_REQUESTS_OF_LEASES,
    NO_COUNT,
    NO_COUNT_OF_LEASES,
];

pub(crate) const ONLY_EXCLUSIVE: &[Skips] = &[NO_SHARED, NO_UPGRADABLE, NO_PERMITS];

pub(crate) const IN_THIS_PROCESS: &[Skips] = &[NO_PROCESSES, NO_CONNECTION, NO_PASSWORD];

pub(crate) const IN_MEMORY: &[Skips] = &[
    NO_PROCESSES,
    NO_CONNECTION,
    NO_RESTART,
    NO_WIPE,
    NO_PASSWORD,
];

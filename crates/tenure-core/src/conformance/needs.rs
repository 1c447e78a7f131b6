//! What a behaviour may need of a store and of its harness.

use super::harness::{Harness, RequestFault};
use super::lock_holder;
use super::mode_matrix::modes_of;
use crate::error::Step;
use crate::guarantees::{Capability, Fault, Guarantees, Order};

type Needs = Result<(), &'static str>;

fn unless(missing: bool, reason: &'static str) -> Needs {
    if missing { Err(reason) } else { Ok(()) }
}

pub(super) fn nothing(_: &Guarantees, _: &dyn Harness) -> Needs {
    Ok(())
}

pub(super) fn leases(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(!h.leases(), "no lease runs in this store")
}

pub(super) fn processes(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        !lock_holder::is_possible(h),
        "no other process can reach this store",
    )
}

pub(super) fn requests(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.requests().is_none(),
        "requests to this store cannot be counted",
    )
}

pub(super) fn evict(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.evict("x").is_none(),
        "nothing but `break_lock` takes a hold away in this store",
    )
}

pub(super) fn lost_requests(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.disturb(Step::Acquire, RequestFault::RequestLost)
            .is_none(),
        "no request to this store can get lost",
    )
}

pub(super) fn pausing(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(h.pause_store().is_none(), "this store cannot fall silent")
}

pub(super) fn connections(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.break_connection().is_none(),
        "there is no connection to this store",
    )
}

pub(super) fn outlives_connections(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.ends_with_connection(),
        "a hold of this store ends with its connection",
    )
}

pub(super) fn wiping(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.wipe_store().is_none(),
        "this store forgets nothing while it runs",
    )
}

pub(super) fn restarting(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(
        h.restart_store().is_none(),
        "this store cannot be restarted",
    )
}

pub(super) fn secret(_: &Guarantees, h: &dyn Harness) -> Needs {
    unless(h.secret().is_none(), "there is no password for this store")
}

pub(super) fn fair(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(g.order != Order::Fair, "no order of waiters is promised")
}

pub(super) fn shared(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!g.shared, "no shared holds")
}

pub(super) fn upgradable(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!g.upgradable, "no upgradable holds")
}

pub(super) fn permits(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!g.permits, "no permits")
}

pub(super) fn min_hold(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!g.min_hold, "no `min_hold`")
}

pub(super) fn lock_delay(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!g.lock_delay, "no `lock_delay`")
}

pub(super) fn something_unsupported(g: &Guarantees, _: &dyn Harness) -> Needs {
    let everything = g.shared && g.upgradable && g.permits && g.min_hold && g.lock_delay;
    unless(
        everything && g.order == Order::Fair,
        "this store can do everything",
    )
}

pub(super) fn survives_pause(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(
        !g.survives(Fault::HolderPaused),
        "promises nothing when the holder is paused",
    )
}

pub(super) fn elections(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!Capability::Elections.is_in(g), "no elections")
}

pub(super) fn no_elections(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(Capability::Elections.is_in(g), "this store has elections")
}

pub(super) fn detach(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(!Capability::Detach.is_in(g), "no detached holds")
}

pub(super) fn modes_not_detached(g: &Guarantees, _: &dyn Harness) -> Needs {
    unless(
        modes_of(g).into_iter().all(|mode| g.detaches(mode)),
        "this store detaches holds of each mode",
    )
}

//! Releasing a hold, and closing the client.

use tenure_core::store::{Hold, Release};

use super::hold::End;
use super::store::Shared;

/// Releases the hold. `None`: this client itself does not hold the name, but there may be a detached hold of the owner, which
/// [`detach::release`](super::detach::release) releases.
pub(super) fn release(shared: &Shared, hold: &Hold) -> Option<Release> {
    let held = shared.holds.remove(hold.owner)?;
    let (release, idle_file) = held.release_and_keep_file(End::of(hold));
    if let Some(idle_file) = idle_file
        && !shared.is_closed()
    {
        shared.idle_files.put(&hold.name, idle_file);
    }
    Some(release)
}

/// Releases what is held, and ends the threads.
pub(super) fn close(shared: &Shared) {
    shared.set_closed();
    for (_, held) in shared.holds.take_all() {
        held.release(End::Clean);
    }
    shared.idle_files.clear();
    shared.requests.close();
    shared.threads.close();
}

//! Losses that nodes report.

use std::sync::{Arc, Weak};

use tenure_core::backend::Listener;
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;

use super::claim::Claim;
use super::store::Core;

/// Hears what one node says about the end of holds.
pub(super) struct Ear {
    pub(super) core: Weak<Core>,
    pub(super) node: usize,
}

impl Ear {
    /// The holds, by our owner ids, that no majority carries any more.
    fn tell(&self, reason: LostReason, claims: impl Fn(&Core) -> Vec<Arc<Claim>>) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        for claim in claims(&core) {
            if claim.lost_node(self.node) < core.majority()
                && let Some(alarm) = core.alarm.get()
            {
                alarm.lost(claim.owner, reason);
            }
        }
    }
}

impl Listener for Ear {
    fn lost(&self, owner: OwnerId, reason: LostReason) {
        self.tell(reason, |core| core.claim(owner).into_iter().collect());
    }

    fn all_lost(&self, reason: LostReason) {
        self.tell(reason, |core| {
            let claims = lock(&core.claims);
            let ours = |(owner, claim): (&OwnerId, &Arc<Claim>)| {
                (*owner == claim.owner).then(|| claim.clone())
            };
            claims.by_owner.iter().filter_map(ours).collect()
        });
    }
}

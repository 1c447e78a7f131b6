//! The rounds of a worker with detached holds: it detaches a hold for another worker, or is attached to one.

use std::io;

use crate::clock::{nanos, now};
use crate::event::Event;
use crate::locks::{AttachFailure, Held, Locks};
use crate::mode::HoldMode;
use crate::receipts::WrittenReceipt;
use crate::rounds::{Ended, Work, pause};

impl Work<'_> {
    /// Whether the worker detaches its next hold: one of four.
    pub(crate) fn detaches<L: Locks>(&mut self, locks: &L, mode: HoldMode) -> bool {
        locks.detaches(mode) && self.receipts.random.between(0, 4) == 0
    }

    /// Detaches the hold of the last acquisition, and writes down its receipt. The claim of this worker has ended. Whether the
    /// store has confirmed it.
    pub(crate) async fn detach<H: Held>(
        &mut self,
        name: &str,
        mode: HoldMode,
        held: H,
    ) -> io::Result<bool> {
        let ttl = self.settings.workload.ttl;
        // As a holder counts its lease: from before the request, and a margin less.
        let lease = nanos(ttl - ttl / 100).saturating_sub(2_000_000);
        let until = now() + lease;
        let Some(text) = held.detach().await else {
            return Ok(false);
        };
        let acquisition = self.acquisition;
        self.log.append(&Event::Detached {
            at: now(),
            acquisition,
            until,
        })?;
        self.receipts.write(&WrittenReceipt {
            text,
            name: name.to_owned(),
            mode,
            acquisition,
        })?;
        Ok(true)
    }

    /// One round of two with a hold that another process has detached, if there is one. Whether this was one.
    pub(crate) async fn attach<L: Locks>(&mut self, locks: &L) -> io::Result<bool> {
        if self.receipts.random.between(0, 2) == 0 {
            return Ok(false);
        }
        let Some(taken) = self.receipts.take()? else {
            return Ok(false);
        };
        // Some of the leases end meanwhile.
        let ttl = nanos(self.settings.workload.ttl) / 1_000_000;
        let random = &mut self.receipts.random;
        let before = match random.between(0, 6) {
            0 => random.between(ttl / 2, ttl + ttl / 4),
            _ => random.between(0, 20),
        };
        tokio::select! {
            () = pause(before) => {}
            () = self.stopped() => return taken.give_back().map(|()| true),
        }
        let asked = now();
        let attached = tokio::select! {
            attached = locks.attach(&taken.written.text) => attached,
            () = self.stopped() => return taken.give_back().map(|()| true),
        };
        let at = now();
        let held = match attached {
            Ok(held) => held,
            Err(AttachFailure::Over) => return taken.remove().map(|()| true),
            // The hold is there or not.
            Err(AttachFailure::Other) => {
                taken.give_back()?;
                pause(self.receipts.random.between(2, 30)).await;
                return Ok(true);
            }
        };
        self.acquisition += 1;
        let WrittenReceipt {
            name,
            mode,
            acquisition,
            ..
        } = taken.written.clone();
        self.claim(&name, mode, &held, [asked, at], Some(acquisition))
            .await?;
        let ended = self.access_for_a_while(&name, mode, &held).await?;
        let detaches = ended == Ended::InTime && self.detaches(locks, mode);
        self.end_claim(ended)?;
        if ended == Ended::Lost {
            // The hold may be there, with the lease of another worker.
            drop(held);
            taken.give_back()?;
        } else if !detaches {
            held.release().await;
            taken.remove()?;
        } else if self.detach(&name, mode, held).await? {
            taken.remove()?;
        } else {
            taken.give_back()?;
        }
        Ok(true)
    }
}

//! A detached hold, as the file of its name describes it.
//!
//! No process has a kernel lock for such a hold. Its record says that the name has no holder and is reserved until the lease
//! ends, and names the holder; a version that does not know detached holds waits for the end of that reservation, as after
//! `min_hold`.
//!
//! The record is changed in the section of the directory (`.mutex`), because a waiter may have the kernel lock for as long as
//! the lease lasts. So a process that has the kernel lock grants the name in the section, too, if the record is that of a
//! detached hold, or may be in change at this moment.
//!
//! # Clocks
//!
//! The record has the end of the lease on two clocks: on the wall clock, which somebody may set, and on the clock that counts
//! from the boot, which ends with it. What is left is what is left on the clock that shows more. A clock that shows more than
//! the whole lease is wrong, and does not count. If both are wrong (the machine was restarted, and its wall clock is behind),
//! the lease begins once more, as a reservation does.

use std::fs::File;
use std::io;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use tenure_core::fence::OwnerId;
use tenure_core::holder::HoldInfo;
use tenure_core::options::Mode;
use tenure_core::rt::{self, Clock};
use tenure_core::support::micros_up;

use super::boot::boot_id;
use super::hold::End;
use super::record::{self, Contents, HolderJson, LeaseJson, Record};
use super::token_files::holder_without_files;

/// The two clocks at one moment, in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClocksNow {
    wall: u64,
    since_boot: u64,
    /// 0 when unknown.
    boot: u64,
}

impl ClocksNow {
    pub(super) fn read() -> Self {
        Self {
            wall: rt::wall_micros(),
            since_boot: Clock::system().now().as_nanos() / 1_000,
            boot: boot_id(),
        }
    }
}

impl LeaseJson {
    /// A lease of `ttl` from now on for a hold with this reservation.
    pub(super) fn new(
        owner: OwnerId,
        ttl: Duration,
        reservation: (u64, u64),
        now: ClocksNow,
    ) -> Self {
        let lease = Self {
            owner: digest(owner),
            ..Self::default()
        };
        lease.lasting(micros_up(ttl), reservation, now)
    }

    fn lasting(
        &self,
        left: u64,
        (reserved_until, reserved_span): (u64, u64),
        now: ClocksNow,
    ) -> Self {
        Self {
            owner: self.owner.clone(),
            until: now.wall.saturating_add(left),
            boot_until: now.since_boot.saturating_add(left),
            boot: now.boot,
            span: left,
            reserved_until,
            reserved_span,
        }
    }

    /// What is left, in µs. `None`: no clock can tell.
    fn left(&self, now: ClocksNow) -> Option<u64> {
        let left = |until: u64, now| Some(until.saturating_sub(now)).filter(|it| *it <= self.span);
        let is_same_boot = now.boot != 0 && now.boot == self.boot;
        let since_boot = is_same_boot.then(|| left(self.boot_until, now.since_boot));
        left(self.until, now.wall).max(since_boot.flatten())
    }

    /// End and length of the reservation that others see: until the lease is over, and what follows it.
    pub(super) fn reservation(&self, delay: u64, now: ClocksNow) -> (u64, u64) {
        let until = self.until.saturating_add(delay).max(self.reserved_until);
        (until, until.saturating_sub(now.wall))
    }
}

/// Identifies an owner without its id, which is a secret of the holder.
fn digest(owner: OwnerId) -> String {
    let digest = Sha256::digest(owner.as_bytes());
    let start: [u8; 16] = std::array::from_fn(|at| digest[at]);
    format!("{:032x}", u128::from_be_bytes(start))
}

/// The record of a detached hold. Its lease may be over.
pub(super) struct DetachedRecord {
    record: Record,
    json: HolderJson<'static>,
    lease: LeaseJson,
}

impl DetachedRecord {
    /// `None`: the record is that of no detached hold, or its holder is damaged or being written.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let (contents, json) = record::read_all(file)?;
        Ok(Self::of(&contents, json))
    }

    pub(super) fn of(contents: &Contents, json: Option<HolderJson<'static>>) -> Option<Self> {
        let Contents::Valid(record) = contents else {
            return None;
        };
        let json = json.filter(|_| contents.is_detached())?;
        Some(Self {
            record: *record,
            lease: json.detached.clone()?,
            json,
        })
    }

    pub(super) fn is_of(&self, owner: OwnerId) -> bool {
        self.lease.owner == digest(owner)
    }

    pub(super) fn token(&self) -> u64 {
        self.record.head.token
    }

    /// What is left of the lease. `None`: the hold is over.
    pub(super) fn left(&self, now: ClocksNow) -> Option<Duration> {
        let left = self.lease.left(now).unwrap_or(self.lease.span);
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// The hold, for people. `None`: it is over.
    pub(super) fn hold_info(self) -> Option<HoldInfo> {
        let left = self.left(ClocksNow::read())?;
        let token = Some(self.token());
        let holder = holder_without_files(self.json);
        Some(HoldInfo::new(holder, Mode::Exclusive, token, Some(left)))
    }

    /// Whether a version that does not know detached holds would grant the name although the lease is not over, or would begin
    /// the reservation once more, because the wall clock was set.
    pub(super) fn is_misleading(&self, now: ClocksNow) -> bool {
        let head = &self.record.head;
        let left = head.until.saturating_sub(now.wall);
        left == 0 || left > head.span || self.lease.left(now).is_none()
    }

    /// Lets the lease last `ttl` from now on at least.
    pub(super) fn extend(&self, file: &File, ttl: Duration, now: ClocksNow) -> io::Result<()> {
        let left = self.left(now).unwrap_or_default();
        self.write_lease(file, micros_up(left).max(micros_up(ttl)), now)
    }

    /// Writes that so much is left of the lease (µs).
    pub(super) fn write_lease(&self, file: &File, left: u64, now: ClocksNow) -> io::Result<()> {
        let lease = self.lease.lasting(left, self.reservation(now), now);
        let reservation = lease.reservation(self.record.head.delay, now);
        let json = HolderJson {
            detached: Some(lease),
            ..self.json.clone()
        };
        self.record.set_lease(file, reservation, &json)
    }

    /// The reservation that came with the grant. As in every record, it begins once more if the wall clock was set back.
    fn reservation(&self, now: ClocksNow) -> (u64, u64) {
        let (until, span) = (self.lease.reserved_until, self.lease.reserved_span);
        (until.min(now.wall.saturating_add(span)), span)
    }

    /// Ends the hold. `lock_delay` applies if its end is not clean.
    pub(super) fn free(&self, file: &File, end: End, now: ClocksNow) -> io::Result<()> {
        let (mut until, mut span) = match end {
            End::Unused => (0, 0),
            End::Clean | End::Unclean => self.reservation(now),
        };
        let delay = self.record.head.delay;
        let delayed = now.wall.saturating_add(delay);
        if end == End::Unclean && delay > 0 && delayed > until {
            (until, span) = (delayed, delay);
        }
        self.record.free(file, until, span)
    }

    /// Ends the hold of a holder that is taken for dead. As for every such hold, `lock_delay` applies alone.
    pub(super) fn break_off(&self, file: &File, now: ClocksNow) -> io::Result<()> {
        let (until, span) = match self.record.head.delay {
            0 => (0, 0),
            delay => (now.wall.saturating_add(delay), delay),
        };
        self.record.free(file, until, span)
    }
}

/// Whether the name of this file has a detached hold whose lease is not over.
pub(super) fn is_held(file: &File) -> io::Result<bool> {
    let found = DetachedRecord::read(file)?;
    Ok(found.is_some_and(|found| found.left(ClocksNow::read()).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: u64 = 1_000_000;

    fn now(wall: u64, since_boot: u64, boot: u64) -> ClocksNow {
        ClocksNow {
            wall,
            since_boot,
            boot,
        }
    }

    fn lease() -> LeaseJson {
        let (owner, ttl) = (OwnerId::random(), Duration::from_micros(TTL));
        LeaseJson::new(owner, ttl, (0, 0), now(70 * TTL, 5 * TTL, 9))
    }

    #[test]
    fn a_lease_ends_on_both_clocks() {
        let lease = lease();
        assert_eq!(lease.left(now(70 * TTL, 5 * TTL, 9)), Some(TTL));
        let half = now(70 * TTL + TTL / 2, 5 * TTL + TTL / 2, 9);
        assert_eq!(lease.left(half), Some(TTL / 2));
        assert_eq!(lease.left(now(71 * TTL, 6 * TTL, 9)), Some(0));
    }

    #[test]
    fn a_wall_clock_that_is_set_neither_ends_a_lease_nor_makes_it_longer_than_it_was() {
        let lease = lease();
        let after_quarter = 5 * TTL + TTL / 4;
        assert_eq!(
            lease.left(now(900 * TTL, after_quarter, 9)),
            Some(TTL * 3 / 4)
        );
        assert_eq!(lease.left(now(0, after_quarter, 9)), Some(TTL * 3 / 4));
        // Set back by less than the lease, it cannot be told from one that is right.
        let a_little = now(70 * TTL, after_quarter, 9);
        assert_eq!(lease.left(a_little), Some(TTL));
    }

    #[test]
    fn after_a_restart_of_the_machine_the_wall_clock_counts() {
        let lease = lease();
        assert_eq!(lease.left(now(70 * TTL + TTL / 4, 3, 8)), Some(TTL * 3 / 4));
        assert_eq!(lease.left(now(80 * TTL, 3, 8)), Some(0));
        assert_eq!(lease.left(now(60 * TTL, 3, 8)), None, "it is behind");
        // Where a boot cannot be told from another one.
        assert_eq!(lease.left(now(80 * TTL, 5 * TTL, 0)), Some(0));
    }

    #[test]
    fn others_see_a_reservation_to_the_end_of_what_follows_the_lease() {
        let (owner, ttl) = (OwnerId::random(), Duration::from_micros(TTL));
        let start = now(70 * TTL, 5 * TTL, 9);
        let kept = LeaseJson::new(owner, ttl, (75 * TTL, 10 * TTL), start);
        assert_eq!(kept.reservation(0, start), (75 * TTL, 5 * TTL));
        assert_eq!(kept.reservation(9 * TTL, start), (80 * TTL, 10 * TTL));
        assert_eq!(lease().reservation(0, start), (71 * TTL, TTL));
    }
}

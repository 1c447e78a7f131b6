//! Until when a session lasts for certain: what the leader knows of the client's last contact.
//!
//! A follower tells its leader at every half tick from which clients it has heard. A write that the follower passes
//! on is no such message: the leader answers the write although it may end the session a moment later. So a lease
//! that begins with a write is as long as the session only if the client was in contact before that write too.
//!
//! While this process runs, the client library sends a ping when nothing was sent for three eighths of the
//! connection timeout, and looks at its clock at every eighth, so contacts are at most half of that timeout apart.
//! While the process or its machine is stopped, nothing is sent. Such a stop is noticed here, and until the leader
//! knows of a contact after the stop, leases count from before the stop.

use std::time::Duration;

use tenure_core::time::Time;

use super::settings::Settings;

/// A write that was sent, and the end of the lease that begins if it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasePeriod {
    pub(super) sent: Time,
    pub(super) end: Time,
}

impl LeasePeriod {
    pub(super) fn length(self) -> Duration {
        self.end.since(self.sent)
    }
}

/// When this process has run, as far as the leases of a session depend on that.
#[derive(Debug)]
pub(super) struct Contact {
    timeout: Duration,
    connection_timeout: Duration,
    /// When this process ran last, as far as we know.
    last_run: Time,
    /// The last stop. Leases are shorter until the leader knows of a contact after the stop.
    stop: Option<Stop>,
}

/// A time in which this process did not run.
#[derive(Clone, Copy, Debug)]
struct Stop {
    began: Time,
    ended: Time,
}

impl Contact {
    /// `timeout`: of a session that is asked for at `now`.
    pub(super) fn new(timeout: Duration, now: Time) -> Self {
        Self {
            timeout,
            connection_timeout: Settings::connection_timeout(timeout),
            last_run: now,
            stop: None,
        }
    }

    /// The servers have granted another timeout than was asked for.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.connection_timeout = Settings::connection_timeout(timeout);
    }

    /// How often [`record_run`](Self::record_run) has to be called: as often as the library looks at its clock.
    pub(super) fn interval(&self) -> Duration {
        self.connection_timeout / 8
    }

    /// This process runs at `now`.
    pub(super) fn record_run(&mut self, now: Time) {
        // A call that is a little late is no stop: the machine may be busy.
        if now.since(self.last_run) > self.connection_timeout / 4 {
            let began = match self.stop {
                // The leader may not know of any contact between the two stops.
                Some(earlier) if self.last_run < self.settled_after(earlier) => earlier.began,
                _ => self.last_run,
            };
            self.stop = Some(Stop { began, ended: now });
        }
        self.last_run = self.last_run.max(now);
    }

    /// The lease of a write that is sent at `now`.
    ///
    /// `is_direct`: the server is its own leader, so a write is a contact.
    pub(super) fn lease(&mut self, now: Time, is_direct: bool) -> LeasePeriod {
        self.record_run(now);
        let last = match self.stop {
            _ if is_direct => now,
            Some(stop) if now < self.settled_after(stop) => self.contact_before(stop.began),
            _ => self.contact_before(now),
        };
        LeasePeriod {
            sent: now,
            end: last.after(self.timeout).max(now),
        }
    }

    /// From when on leases have their whole length again; in the past if they have that length already.
    ///
    /// `is_direct`: as for [`lease`](Self::lease). No task records that this process runs then, so a stop that was
    /// recorded says nothing.
    pub(super) fn settled_at(&self, is_direct: bool) -> Time {
        match self.stop {
            Some(stop) if !is_direct => self.settled_after(stop),
            _ => Time::default(),
        }
    }

    /// The last contact before that time, at the latest.
    fn contact_before(&self, time: Time) -> Time {
        time.before(self.connection_timeout / 2)
    }

    /// When the leader knows of a contact after that stop. The library sends a ping when it reads its clock next. A tick is
    /// at most half of the shortest session that a server grants (`minSessionTimeout`), so the leader learns of that ping
    /// within a quarter of any session; and the contact before a later write has to be one after the stop.
    fn settled_after(&self, stop: Stop) -> Time {
        let told = self.interval() + self.timeout / 4;
        stop.ended.after(told.max(self.connection_timeout / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(2_500);
    /// Two fifths of the timeout of the session.
    const CONNECTION_TIMEOUT: Duration = Duration::from_millis(1_000);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// A client that runs from 0 on until `until`.
    fn running(until: u64) -> Contact {
        let mut contact = Contact::new(TIMEOUT, at(0));
        run(&mut contact, 0, until);
        contact
    }

    fn run(contact: &mut Contact, from: u64, until: u64) {
        let step = u64::try_from(contact.interval().as_millis()).unwrap();
        for now in (from..=until).step_by(usize::try_from(step).unwrap()) {
            contact.record_run(at(now));
        }
        contact.record_run(at(until));
    }

    #[test]
    fn a_lease_of_a_client_that_runs_is_the_session_less_the_time_between_contacts() {
        let mut contact = running(10_000);
        let lease = contact.lease(at(10_100), false);
        assert_eq!(lease.sent, at(10_100));
        assert_eq!(lease.length(), TIMEOUT - CONNECTION_TIMEOUT / 2);
        assert!(contact.settled_at(false) <= at(10_100));
    }

    #[test]
    fn one_server_counts_every_write() {
        let mut contact = running(1_000);
        assert_eq!(contact.lease(at(9_000), true).length(), TIMEOUT);
        // A waiter does not wait for longer leases: they have their whole length.
        assert_eq!(contact.settled_at(true), Time::default());
        assert!(contact.settled_at(false) > at(9_000));
    }

    /// What the torture run saw: stopped for 2.41 s of a session of 2.5 s, and a write right after that.
    #[test]
    fn after_a_stop_a_write_does_not_begin_a_whole_lease() {
        let mut contact = running(49_860);
        let lease = contact.lease(at(52_270), false);
        // The last contact may be of 49.36, and the session ends at 51.86.
        assert_eq!(lease.end, lease.sent);
        // A short stop leaves some of it.
        let mut contact = running(49_860);
        let lease = contact.lease(at(50_860), false);
        assert_eq!(lease.end, at(51_860));
    }

    #[test]
    fn when_the_leader_has_heard_again_leases_are_whole() {
        let mut contact = running(1_000);
        contact.record_run(at(3_000));
        let settled = contact.settled_at(false);
        assert_eq!(settled, at(3_000 + 125 + 625));
        run(&mut contact, 3_000, 3_749);
        assert!(contact.lease(at(3_749), false).length() < CONNECTION_TIMEOUT);
        let lease = contact.lease(at(3_750), false);
        assert_eq!(lease.length(), TIMEOUT - CONNECTION_TIMEOUT / 2);
    }

    #[test]
    fn a_second_stop_counts_from_the_first_unless_the_leader_has_heard_in_between() {
        let mut contact = running(1_000);
        contact.record_run(at(1_500));
        run(&mut contact, 1_500, 1_700);
        let lease = contact.lease(at(2_100), false);
        assert_eq!(
            lease.end,
            at(1_000).after(TIMEOUT).before(CONNECTION_TIMEOUT / 2)
        );
        run(&mut contact, 2_100, 4_000);
        let lease = contact.lease(at(4_400), false);
        assert_eq!(
            lease.end,
            at(4_000).after(TIMEOUT).before(CONNECTION_TIMEOUT / 2)
        );
    }

    #[test]
    fn a_call_that_is_a_little_late_is_no_stop() {
        let mut contact = running(1_000);
        let lease = contact.lease(at(1_250), false);
        assert_eq!(lease.length(), TIMEOUT - CONNECTION_TIMEOUT / 2);
    }
}

//! Whether a name that no process holds may be granted.

use std::fs::File;
use std::io;
use std::time::Duration;

use tenure_core::rt;
use tenure_core::support::micros_up;

use super::detached_record::{ClocksNow, DetachedRecord};
use super::record::{Contents, Record, RecordState};

/// For how long nothing is granted although no process holds the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) left: Duration,
    /// A detached hold is the reason, which may end earlier or later than that.
    pub(super) is_detached: bool,
}

/// Whether a name without a holder may be granted.
pub(super) enum Vacancy {
    Free,
    Reserved(Reservation),
    /// Another process may be changing the record at this moment: only the section can tell.
    Unknown,
}

/// Whether the name may be granted; the caller has the kernel lock. `is_in_section`: and is in the section.
pub(super) fn vacancy(
    contents: &Contents,
    file: &File,
    is_in_section: bool,
) -> io::Result<Vacancy> {
    let Contents::Valid(record) = contents else {
        return Ok(Vacancy::Free);
    };
    if !is_in_section && contents.is_half() {
        return Ok(Vacancy::Unknown);
    }
    if contents.is_detached() {
        let (now, found) = (ClocksNow::read(), DetachedRecord::read(file)?);
        let live = found.and_then(|found| Some((found.left(now)?, found)));
        match live {
            Some((left, found)) if is_in_section || !found.is_misleading(now) => {
                if found.is_misleading(now) {
                    found.write_lease(file, micros_up(left), now)?;
                }
                let is_detached = true;
                return Ok(Vacancy::Reserved(Reservation { left, is_detached }));
            }
            // The hold is over, or its holder is damaged: what is left is a reservation.
            None if is_in_section => {}
            _ => return Ok(Vacancy::Unknown),
        }
    }
    let left = reserved(record, file, rt::wall_micros())?;
    Ok(left.map_or(Vacancy::Free, |left| {
        let is_detached = false;
        Vacancy::Reserved(Reservation { left, is_detached })
    }))
}

/// How long the name stays reserved without a holder.
///
/// The caller has the kernel lock, so a record that says "held exclusively" is that of a dead holder.
fn reserved(found: &Record, file: &File, now: u64) -> io::Result<Option<Duration>> {
    let head = &found.head;
    let (mut until, mut span) = (head.until, head.span);
    // Written with an end `span` after its time: more than that is left only if the wall clock went back.
    // How much of the reservation has passed is unknown, so the reservation begins once more.
    if until.saturating_sub(now) > span {
        until = now.saturating_add(span);
    }
    if head.state == RecordState::Exclusive && head.delay > 0 {
        // The time of the death is unknown, so the delay counts from now.
        let end = now.saturating_add(head.delay);
        if end > until {
            (until, span) = (end, head.delay);
        }
    }
    let changed = until != head.until || (head.state == RecordState::Exclusive && head.delay > 0);
    if changed && until > now {
        found.free(file, until, span)?;
    }
    Ok((until > now).then(|| Duration::from_micros(until - now)))
}

//! The events in their order. They show that a seed gives one history, and the last events of a failed history are
//! printed.

use std::collections::VecDeque;
use std::fmt;

use tenure::time::Time;

/// The number of events that are printed of a failed history.
const TAIL: usize = 80;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) at: Time,
    pub(crate) client: usize,
    pub(crate) what: &'static str,
    pub(crate) name: &'static str,
    pub(crate) number: u64,
}

#[derive(Default)]
pub(crate) struct History {
    pub(crate) digest: u64,
    pub(crate) tail: VecDeque<Event>,
    pub(crate) keeps_all: bool,
}

impl History {
    pub(crate) fn note(&mut self, event: Event) {
        let words = [event.at.as_nanos(), event.client as u64, event.number];
        for word in words
            .into_iter()
            .chain(event.what.bytes().chain(event.name.bytes()).map(u64::from))
        {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01B3);
            self.digest ^= self.digest >> 29;
        }
        if !self.keeps_all && self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(event);
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.since(start()).as_secs_f64();
        let Self {
            client,
            what,
            name,
            number,
            ..
        } = self;
        write!(
            f,
            "{seconds:12.6} s  client {client}  {what} {name} {number}"
        )
    }
}

/// The start of every virtual clock.
pub(crate) fn start() -> Time {
    Time::from_millis(3_600_000)
}

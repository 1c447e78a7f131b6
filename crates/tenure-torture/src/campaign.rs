//! The rounds of a worker that is a candidate: it campaigns, publishes values, and ends its term in one of several ways.

use std::io;
use std::pin::pin;
use std::time::Duration;

use crate::clock::{nanos, now};
use crate::event::Event;
use crate::locks::{Held, Locks};
use crate::mode::HoldMode;
use crate::observer_checker::longest_delay;
use crate::phase::Phase;
use crate::rounds::{Ended, Work, pause};
use crate::settings::Workload;

/// The last leader leads for longer than [`longest_delay`] by this time.
const SLACK: Duration = Duration::from_millis(500);

/// How long the last part of a run takes, after the last leader was elected.
pub(crate) fn settling_time(workload: &Workload) -> Duration {
    longest_delay(workload.ttl) + workload.ttl + SLACK
}

/// The election that has a leader in the last part of a run; `None`: none of them. Of two elections it is always one.
pub(crate) fn led_last(elections: &[String], seed: u64) -> Option<&String> {
    elections.get((seed % 2) as usize)
}

impl Work<'_> {
    /// One round with an election: campaigns, publishes some values and ends the term.
    pub(crate) async fn campaign<L: Locks>(&mut self, locks: &L) -> io::Result<()> {
        let names = self.settings.campaigns();
        let name = &names[self.random.number() as usize % names.len()];
        if self.random.between(0, 4) == 0 {
            tokio::select! {
                () = locks.ask_to_resign(name) => {}
                () = self.stopped() => return Ok(()),
            }
        }
        // Some campaigns are given up: the term of a request that is on its way must end.
        let give_up_after = match self.random.between(0, 6) {
            0 => self.random.between(0, 200),
            _ => u64::MAX,
        };
        let asked = now();
        self.ask(asked, name, HoldMode::Election)?;
        let value = self.begin_campaign()?;
        let elected = tokio::select! {
            elected = locks.campaign(name, &value) => elected,
            () = pause(give_up_after) => return self.leave(),
            () = self.stopped() => return self.leave(),
        };
        let at = now();
        match elected {
            Ok(held) => {
                self.lead(name, &held, [asked, at]).await?;
                match self.random.between(0, 3) {
                    // A term that is dropped ends in the background.
                    0 => drop(held),
                    _ => held.release().await,
                }
                pause(self.random.between(0, 5)).await;
            }
            Err(why) => self.refused(at, name, why).await?,
        }
        Ok(())
    }

    /// One term, from the election until its end. A leader that is asked to resign does so at once.
    async fn lead<H: Held>(
        &mut self,
        name: &str,
        held: &H,
        [asked, at]: [u64; 2],
    ) -> io::Result<()> {
        let mode = HoldMode::Election;
        let mut asked_to_release = pin!(held.asked_to_release());
        self.claim(name, mode, held, [asked, at], None).await?;
        let values = self.random.between(0, 4);
        let mut ended = self.access_for_a_while(name, mode, held).await?;
        for number in 1..=values {
            let is_asked = tokio::select! {
                biased;
                () = &mut asked_to_release => true,
                () = std::future::ready(()) => false,
            };
            if is_asked || ended != Ended::InTime {
                break;
            }
            self.proclaim(held, number).await?;
            ended = self.access_for_a_while(name, mode, held).await?;
        }
        self.end_claim(ended)
    }

    /// Publishes another value. Some of these requests are dropped on their way.
    async fn proclaim<H: Held>(&mut self, held: &H, number: u64) -> io::Result<()> {
        let give_up_after = match self.random.between(0, 6) {
            0 => self.random.between(0, 3),
            _ => u64::MAX,
        };
        let value = self.publish(number)?;
        let is_stored = tokio::select! {
            is_stored = held.proclaim(&value) => is_stored,
            () = pause(give_up_after) => false,
            () = self.stopped() => false,
        };
        if is_stored {
            self.log.append(&Event::Published {
                at: now(),
                acquisition: self.acquisition,
            })?;
        }
        Ok(())
    }

    /// A campaign has the number of an acquisition whether it succeeds or not, because its value may be seen. Returns the
    /// value.
    fn begin_campaign(&mut self) -> io::Result<String> {
        self.acquisition += 1;
        self.publish(0)
    }

    /// Records that this acquisition publishes its `number`-th value, and returns the value.
    fn publish(&mut self, number: u64) -> io::Result<String> {
        let acquisition = self.acquisition;
        let worker = self.settings.worker;
        let value = format!("worker-{worker}-term-{acquisition}-value-{number}");
        self.log.append(&Event::Publishing {
            at: now(),
            acquisition,
            value: value.clone(),
        })?;
        Ok(value)
    }

    /// The last part of a run: leads one of the elections, or none, for so long that each observer must know it.
    pub(crate) async fn lead_last<L: Locks>(&mut self, locks: &L) -> io::Result<()> {
        let mut phases = self.phases.clone();
        let mut ended = pin!(async {
            // An error means that the phases have ended.
            let _ = phases.wait_for(|phase| *phase == Phase::End).await;
        });
        if *self.phases.borrow() == Phase::End {
            return Ok(());
        }
        let settings = self.settings;
        let Some(name) = led_last(settings.campaigns(), settings.seed) else {
            tokio::select! {
                () = tokio::time::sleep(settling_time(&settings.workload)) => {}
                () = &mut ended => {}
            }
            return Ok(());
        };
        let asked = now();
        self.ask(asked, name, HoldMode::Election)?;
        let value = self.begin_campaign()?;
        let elected = tokio::select! {
            elected = locks.campaign(name, &value) => elected,
            () = &mut ended => return self.leave(),
        };
        let at = now();
        let held = match elected {
            Ok(held) => held,
            Err(why) => return self.refused(at, name, why).await,
        };
        self.claim(name, HoldMode::Election, &held, [asked, at], None)
            .await?;
        self.proclaim_last(&held).await?;
        let until = now() + nanos(longest_delay(settings.workload.ttl) + SLACK);
        let mut how = Ended::InTime;
        while now() < until {
            if !self.believes(&held).await? {
                how = Ended::Lost;
                break;
            }
            tokio::select! {
                () = pause(50) => {}
                () = &mut ended => break,
            }
        }
        self.end_claim(how)?;
        held.release().await;
        Ok(())
    }

    /// As [`proclaim`](Self::proclaim), although the worker works no more.
    async fn proclaim_last<H: Held>(&mut self, held: &H) -> io::Result<()> {
        let value = self.publish(1)?;
        if held.proclaim(&value).await {
            self.log.append(&Event::Published {
                at: now(),
                acquisition: self.acquisition,
            })?;
        }
        Ok(())
    }
}

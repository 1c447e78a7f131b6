//! What `run` and `hold` acquire.

use std::ffi::OsString;
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Lock, LockName, Mode, Options, Renew};

use crate::args;
use crate::lock_name::lock_name;

/// What is acquired and how. It is checked as far as possible without a store.
pub(crate) struct Plan {
    pub(crate) names: Vec<LockName>,
    /// Acquire one of the names instead of all.
    pub(crate) any: bool,
    pub(crate) options: Options,
    pub(crate) busy_code: u8,
}

impl Plan {
    /// # Errors
    /// `Invalid`, which names the input and its cure.
    pub(crate) fn new(names: &[OsString], how: &args::Acquire) -> Result<Self, Error> {
        let names = names.iter().map(lock_name).collect::<Result<_, _>>()?;
        let mut options = Options::default();
        options.mode = match how.permits {
            Some(limit) => Mode::Permits { limit },
            None if how.shared => Mode::Shared,
            None => Mode::Exclusive,
        };
        options.wait = if how.try_once {
            Some(Duration::ZERO)
        } else {
            how.wait
        };
        options.ttl = how.lease.ttl;
        options.drift = how.lease.drift.unwrap_or_default();
        // The limits of the command follow from the lease, so the lease must have its full length from the start.
        options.min_lease = how.lease.ttl;
        options.max_hold = how.lease.max_hold;
        options.lock_delay = how.reservation.lock_delay.unwrap_or_default();
        if how.lease.renew == args::Renewal::Never {
            options.renew = Renew::Never;
            if how
                .lease
                .max_hold
                .is_some_and(|max_hold| max_hold > how.lease.ttl)
            {
                let message = "`--max-hold` is longer than `--ttl`, and with `--renew never` the hold ends with its lease; raise `--ttl`, or leave `--renew never` out";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        options.fair = how.fair.then_some(true);
        options.min_hold = how
            .reservation
            .every
            .max(how.reservation.min_hold)
            .unwrap_or_default();
        options.label = how.label.clone();
        options.validate()?;
        Ok(Self {
            names,
            any: how.any,
            options,
            busy_code: how.busy_exit_code,
        })
    }

    pub(crate) fn lock(&self, client: &Client) -> Lock {
        let lock = match self.names.as_slice() {
            [name] => client.lock(name),
            names if self.any => client.lock_any(names),
            names => client.lock_all(names),
        };
        lock.options(self.options.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Action, Cli};

    #[test]
    fn every_flag_becomes_an_option_of_the_lock() {
        let plan = |line: &str| {
            let arguments = format!("tenure hold {line} x y");
            match Cli::try_parse_from(arguments.split_whitespace())
                .unwrap()
                .action
            {
                Action::Hold(args) => Plan::new(&args.names, &args.acquire).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let seconds = Duration::from_secs;
        let plain = plan("");
        assert!(!plain.any);
        let mut options = Options::default();
        options.min_lease = options.ttl;
        assert_eq!(plain.options, options);
        assert_eq!(plan("--renew automatic").options, options);
        let full = plan(
            "--any -w 1s --ttl 20s --drift 2s --renew never --max-hold 3s --shared --fair \
             --every 4s --lock-delay 5s --label why",
        );
        assert!(full.any);
        options.mode = Mode::Shared;
        options.wait = Some(seconds(1));
        options.ttl = seconds(20);
        options.min_lease = seconds(20);
        options.drift = seconds(2);
        options.renew = Renew::Never;
        options.max_hold = Some(seconds(3));
        options.fair = Some(true);
        options.min_hold = seconds(4);
        options.lock_delay = seconds(5);
        options.label = "why".into();
        assert_eq!(full.options, options);
    }
}

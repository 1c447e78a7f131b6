//! What `run`, `hold` and `take` acquire.

use std::collections::HashSet;
use std::ffi::OsString;
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Fairness, Guard, Lock, LockName, Mode, Options, Renew};

use crate::args;
use crate::lock_name::lock_name;

/// What is acquired and how. It is checked as far as possible without a store.
pub(crate) struct Plan {
    pub(crate) names: Vec<LockName>,
    /// How many of the names are acquired, if not all.
    pub(crate) count: Option<usize>,
    pub(crate) options: Options,
    pub(crate) role: Role,
    /// The whole time of `--wait`.
    pub(crate) wait: Option<Duration>,
    pub(crate) busy_code: u8,
}

/// As what `tenure` acquires.
pub(crate) enum Role {
    /// A lock.
    Holder,
    /// A lock whose hold gets a receipt.
    Taker,
    /// A lock, with `--standby`, in a store without elections.
    Standby,
    /// The leadership, with this text for `tenure leader`.
    Candidate(String),
}

impl Plan {
    /// # Errors
    /// `Invalid`, with a message that says which input is wrong and how to correct it.
    pub(crate) fn new(names: &[OsString], how: &args::Acquire) -> Result<Self, Error> {
        let mut plan = Self::choose(names, &how.waiting, &how.choice)?;
        let options = &mut plan.options;
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
        options.min_hold = how
            .reservation
            .every
            .max(how.reservation.min_hold)
            .unwrap_or_default();
        options.label = how.label.clone();
        options.validate()?;
        Ok(plan)
    }

    /// What `take` acquires, for the default lease at most: a `take` that is killed before there is a receipt keeps the names
    /// for no longer than that. A hold never ends earlier than at the end of its first lease.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn to_take(args: &args::Take) -> Result<Self, Error> {
        let mut plan = Self::choose(&args.names, &args.waiting, &args.choice)?;
        plan.role = Role::Taker;
        plan.options.label = args.holder.clone();
        plan.options.ttl = plan.options.ttl.min(args.lasts);
        plan.options.validate()?;
        Ok(plan)
    }

    /// The names and the mode, with default options for everything else.
    fn choose(
        names: &[OsString],
        waiting: &args::WaitFlags,
        choice: &args::Choice,
    ) -> Result<Self, Error> {
        let names: Vec<_> = names.iter().map(lock_name).collect::<Result<_, _>>()?;
        let count = match choice.any {
            true => Some(1),
            false => choice.k_of,
        };
        if let Some(count) = choice.k_of {
            check_k_of(&names, count)?;
        }
        let mut options = Options::default();
        options.mode = match choice.permits {
            Some(limit) => Mode::Permits { limit },
            None if choice.shared => Mode::Shared,
            None => Mode::Exclusive,
        };
        options.wait = if waiting.try_once {
            Some(Duration::ZERO)
        } else {
            waiting.wait
        };
        if choice.fair {
            options.fair = Fairness::Fair;
        }
        Ok(Self {
            names,
            count,
            role: Role::Holder,
            wait: options.wait,
            options,
            busy_code: waiting.busy_exit_code,
        })
    }

    /// For how long `tenure` tries to connect to a store that cannot be reached. Without `--wait`, the first failure is the
    /// error: otherwise a wrong address would look like a long wait.
    pub(crate) fn wait_for_store(&self) -> Duration {
        self.wait.unwrap_or_default()
    }

    /// With what is left of the wait after `waited`.
    pub(crate) fn after_waiting(mut self, waited: Duration) -> Self {
        self.options.wait = self.wait.map(|wait| wait.saturating_sub(waited));
        self
    }

    /// Acquires everything. Cancel safe, as [`Lock::acquire`].
    pub(crate) async fn acquire(&self, client: &Client) -> Result<Guard, Error> {
        match &self.role {
            Role::Holder | Role::Taker | Role::Standby => self.lock(client).acquire().await,
            Role::Candidate(value) => {
                // An election takes its options from the client.
                let client = client.clone().with_defaults(self.options.clone());
                let election = client.election(&self.names[0]).value(value.as_str());
                Ok(election.campaign().await?.into_guard())
            }
        }
    }

    /// What `tenure` does until everything is acquired.
    pub(crate) fn activity(&self) -> &'static str {
        match self.role {
            Role::Holder | Role::Taker => "waiting",
            Role::Standby | Role::Candidate(_) => "standing by",
        }
    }

    fn lock(&self, client: &Client) -> Lock {
        let lock = match (self.names.as_slice(), self.count) {
            ([name], _) => client.lock(name),
            (names, None) => client.lock_all(names),
            (names, Some(1)) => client.lock_any(names),
            (names, Some(count)) => client.lock(&names[0]).k_of(names, count),
        };
        lock.options(self.options.clone())
    }
}

/// Refuses a number of names that cannot be held. The error names the flag, which the library does not know.
fn check_k_of(names: &[LockName], count: usize) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    if count == 0 {
        return invalid("`--k-of` is 0; give the number of names to hold, at least 1".into());
    }
    let mut seen = HashSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return invalid(format!(
            "the name {name} is there twice, and with `--k-of` each name counts once; leave one out"
        ));
    }
    if count > names.len() {
        return invalid(format!(
            "`--k-of` is {count}, and there are {} names; name more locks, or lower `--k-of`",
            names.len()
        ));
    }
    Ok(())
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
        assert_eq!(plain.count, None);
        let mut options = Options::default();
        options.min_lease = options.ttl;
        assert_eq!(plain.options, options);
        assert_eq!(plan("--renew automatic").options, options);
        let full = plan(
            "--any -w 1s --ttl 20s --drift 2s --renew never --max-hold 3s --shared --fair \
             --every 4s --lock-delay 5s --label why",
        );
        assert_eq!(full.count, Some(1));
        assert_eq!(plan("--k-of 2").count, Some(2));
        options.mode = Mode::Shared;
        options.wait = Some(seconds(1));
        options.ttl = seconds(20);
        options.min_lease = seconds(20);
        options.drift = seconds(2);
        options.renew = Renew::Never;
        options.max_hold = Some(seconds(3));
        options.fair = Fairness::Fair;
        options.min_hold = seconds(4);
        options.lock_delay = seconds(5);
        options.label = "why".into();
        assert_eq!(full.options, options);
    }
}

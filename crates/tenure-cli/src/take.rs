//! `tenure take`: acquires locks, and leaves them held without a process, under a receipt.
//!
//! The order makes that no hold is without a receipt for long: the locks are acquired for the default lease, detached, and
//! written down; only then the hold is renewed for the time of `--for`. A process that is killed before the receipt is written
//! leaves a hold that ends by itself, soon.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::guarantees::Capability;
use tenure::{Client, Error, ErrorKind, LockName, Mode, Receipt};

use crate::acquire;
use crate::args::{Common, Take};
use crate::console::{self, Console};
use crate::exit::Exit;
use crate::give_back::{self, hold_json, hold_name, hold_text};
use crate::plan::Plan;
use crate::receipt::ReceiptFile;
use crate::results::report_error;
use crate::signals::Signals;
use crate::store;

pub(crate) async fn take(common: &Common, args: &Take, console: &Console) -> Exit {
    let busy = args.waiting.busy_exit_code;
    let prepared = Plan::to_take(args).and_then(|plan| {
        let file = args.receipt.as_deref().map(ReceiptFile::prepare);
        Ok((plan, file.transpose()?))
    });
    let (plan, file) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return report_error(console, &error, busy),
    };
    let wait = plan.wait_for_store();
    let work = async |client: &Client, signals: &mut Signals, waited| {
        let taking = Taking {
            client,
            console,
            plan: &plan.after_waiting(waited),
            lasts: args.lasts,
            file: file.as_ref(),
        };
        taking.take(signals).await.err().unwrap_or(Exit::Done)
    };
    store::with_client_and_signals(common, console, wait, work)
        .await
        .unwrap_or_else(|failure| failure.report(console, busy))
}

/// Refuses, before any request for a lock, what this store cannot detach.
pub(crate) fn check_store(client: &Client, mode: Mode) -> Result<(), Error> {
    client.require(Capability::Detach)?;
    let can = client.guarantees();
    let refuse = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
    if can.scheme == "memory" {
        return refuse(
            "`memory:` is gone when this process ends, and its holds with it; leave `-u` out for locks of this machine".into(),
        );
    }
    match can.detaches(mode) {
        true => Ok(()),
        false => refuse(format!(
            "{}: holds of the mode \"{mode}\" end with their process, and only exclusive ones can go on; leave the option for the mode out, or use another store (`tenure check` says what a store can do)",
            can.scheme
        )),
    }
}

struct Taking<'a> {
    client: &'a Client,
    console: &'a Console,
    plan: &'a Plan,
    /// For how long the hold is renewed once it is written down.
    lasts: Duration,
    file: Option<&'a ReceiptFile>,
}

impl Taking<'_> {
    async fn take(&self, signals: &mut Signals) -> Result<(), Exit> {
        self.done(check_store(self.client, self.plan.options.mode))?;
        if self.renew_kept(signals).await? {
            return Ok(());
        }
        let guard = acquire::acquire(self.client, self.plan, signals, self.console, || ()).await?;
        // A signal that comes now gives the locks back, because nothing is written down.
        let detached = signals.unless_signalled(guard.detach()).await?;
        let receipt = self.done(detached)?.with_ttl(self.lasts);
        if let Err(error) = self.write(&receipt).await {
            return self.done(Err(self.give_up(&receipt, error).await));
        }
        let renewal = give_back::renew_hold(self.client, &receipt);
        let renewed = signals.unless_signalled(renewal).await?;
        self.done(renewed)?;
        self.report("acquired", &receipt).await;
        Ok(())
    }

    /// Renews the hold whose receipt is in the file already, if it is one of what is asked for and goes on. `false`: the locks
    /// have to be acquired, and the file may be written.
    async fn renew_kept(&self, signals: &mut Signals) -> Result<bool, Exit> {
        let Some(file) = self.file else {
            return Ok(false);
        };
        let Some(kept) = self.done(file.read())? else {
            return Ok(false);
        };
        if !self.is_asked_for(&kept) {
            let check = signals
                .unless_signalled(self.check_over(file, &kept))
                .await?;
            return self.done(check).map(|()| false);
        }
        let renewed = kept.clone().with_ttl(self.lasts);
        let renewal = give_back::renew_hold(self.client, &renewed);
        match signals.unless_signalled(renewal).await? {
            Ok(()) => {
                // A file that was changed meanwhile is that of another process.
                self.done(file.replace(Some(&kept), &renewed).await)?;
                self.report("renewed", &renewed).await;
                Ok(true)
            }
            Err(error) if error.is_lost() => {
                self.console
                    .detail(format!("the hold in {} is over: {error:#}", file.shown()));
                // Of several names one may be over, and the others would be waited for.
                let rest = give_back::release_hold(self.client, &kept);
                match signals.unless_signalled(rest).await? {
                    Err(error) if !error.is_lost() => self.done(Err(error)),
                    _ => Ok(false),
                }
            }
            Err(error) => self.done(Err(error)),
        }
    }

    /// Whether the receipt is one of the names and the mode that are asked for, in this store.
    fn is_asked_for(&self, kept: &Receipt) -> bool {
        let held: BTreeSet<&LockName> = kept.tokens().map(|(name, _)| name).collect();
        let asked: BTreeSet<_> = self.plan.names.iter().collect();
        let are_names = match self.plan.count {
            None => held == asked,
            Some(count) => held.len() == count && held.is_subset(&asked),
        };
        are_names && kept.mode() == self.plan.options.mode && kept.store() == self.client.address()
    }

    /// Refuses to replace the receipt of a hold that goes on, or of one about which this store knows nothing.
    async fn check_over(&self, file: &ReceiptFile, kept: &Receipt) -> Result<(), Error> {
        let (file, here) = (file.shown(), self.client.address());
        let refuse = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if kept.store() != here {
            return refuse(format!(
                "{file} has a receipt of another store, \"{}\", and this command is about \"{here}\"; name another file, or end that hold with `tenure release -u URL`",
                tenure::name::Escaped(kept.store())
            ));
        }
        for (name, token) in kept.tokens() {
            let status = self.client.inspect(name).await?;
            if status.holds.iter().any(|hold| hold.token == Some(token)) {
                let (held, mode) = (hold_name(kept), kept.mode());
                return refuse(format!(
                    "{file} has the receipt of another hold, which goes on: {held}, {mode}; end it with `tenure release`, or name another file"
                ));
            }
        }
        Ok(())
    }

    /// Writes the receipt where it belongs.
    async fn write(&self, receipt: &Receipt) -> Result<(), Error> {
        let Some(file) = self.file else {
            let printed = match self.console.json {
                true => {
                    let mut value = hold_json(receipt, receipt.ttl());
                    value["receipt"] = receipt.to_string().into();
                    value["renewed"] = false.into();
                    console::print_result(value)
                }
                false => console::print_result(receipt),
            };
            return printed.map_err(|error| {
                let message = format!("cannot write the receipt to standard output: {error}");
                Error::new(ErrorKind::Store, message)
            });
        };
        loop {
            let kept = file.read()?;
            if let Some(kept) = &kept {
                self.check_over(file, kept).await?;
            }
            if file.replace(kept.as_ref(), receipt).await? {
                return Ok(());
            }
        }
    }

    /// Gives the locks back, because their receipt could not be written. Returns the error to print.
    async fn give_up(&self, receipt: &Receipt, error: Error) -> Error {
        let end = match give_back::release_hold(self.client, receipt).await {
            Ok(()) => "the lock was given back".to_owned(),
            Err(release) if release.is_lost() => "the lock was lost meanwhile".to_owned(),
            Err(release) => format!(
                "the lock cannot be given back ({release:#}), and is free when its lease ends, in {} at most",
                crate::duration::rounded(self.plan.options.ttl)
            ),
        };
        Error::new(error.kind(), format!("{error:#}; {end}"))
    }

    /// Says what is held, unless standard output has the receipt.
    async fn report(&self, what: &str, receipt: &Receipt) {
        let Some(file) = self.file else {
            return;
        };
        let left = give_back::time_left(self.client, receipt).await;
        let line = match self.console.json {
            true => {
                let mut value = hold_json(receipt, left);
                value["receipt_file"] = file.path().to_string_lossy().into();
                value["renewed"] = (what == "renewed").into();
                value.to_string()
            }
            false => format!("{what} {}", hold_text(receipt, left)),
        };
        // The hold is written down, so a reader that is gone changes nothing.
        let _ = console::print_result(line);
    }

    /// Prints an error of the library, and returns how `tenure` ends.
    fn done<T>(&self, outcome: Result<T, Error>) -> Result<T, Exit> {
        outcome.map_err(|error| report_error(self.console, &error, self.plan.busy_code))
    }
}

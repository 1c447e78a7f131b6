//! `tenure run --receipt`: runs the command under a hold that `take` made, and keeps the hold afterwards.
//!
//! While the command runs, the hold has two leases. That of `--ttl` is renewed as every lock of `run`, so a hold that is broken
//! or given back ends the command soon. That of the receipt is longer, and is renewed more rarely, so the hold goes on when
//! `tenure` is killed. The store keeps the hold until the later end of the two.

use std::ffi::OsStr;
use std::time::Duration;

use tenure::guarantees::Capability;
use tenure::{Client, Error, ErrorKind, Guard, Options, Receipt};

use crate::acquire::{self, Grant};
use crate::args::{Common, Run};
use crate::console::Console;
use crate::duration::MIN_HOLD;
use crate::exit::Exit;
use crate::give_back::{self, hold_text};
use crate::guardian::handle::GuardianHandle;
use crate::receipt;
use crate::results::report_error;
use crate::signals::{self, Signals};
use crate::store;
use crate::supervision::{EndCause, HoldAfter, Supervision};

pub(crate) async fn run(common: &Common, args: &Run, receipt: &OsStr, console: &Console) -> Exit {
    let receipt = match prepare(args, receipt) {
        Ok(receipt) => receipt,
        Err(error) => return report_error(console, &error, Exit::BUSY),
    };
    let work = async |client: &Client, signals: &mut Signals, _| {
        let run = AttachedRun {
            common,
            args,
            console,
            client,
            receipt: &receipt,
        };
        run.run(signals).await.unwrap_or_else(|exit| exit)
    };
    store::with_client_and_signals(common, console, Duration::ZERO, work)
        .await
        .unwrap_or_else(|failure| failure.report(console, Exit::BUSY))
}

fn prepare(args: &Run, receipt: &OsStr) -> Result<Receipt, Error> {
    let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
    if args.command.is_empty() {
        return invalid(
            "no command: write it after `--`, as in `tenure run --receipt FILE -- ./report.sh`",
        );
    }
    if receipt == "-" {
        return invalid(
            "standard input belongs to the command, so `run` reads no receipt from it; name a file",
        );
    }
    let receipt = receipt::read(receipt)?;
    let ttl = receipt.ttl().max(MIN_HOLD);
    Ok(receipt.with_ttl(ttl))
}

struct AttachedRun<'a> {
    common: &'a Common,
    args: &'a Run,
    console: &'a Console,
    client: &'a Client,
    /// With the ttl for which the hold is kept.
    receipt: &'a Receipt,
}

impl AttachedRun<'_> {
    async fn run(&self, signals: &mut Signals) -> Result<Exit, Exit> {
        let (args, console) = (self.args, self.console);
        self.done(self.client.require(Capability::Detach))?;
        let attached = signals.unless_signalled(self.attach()).await?;
        let guard = self.done(attached)?;
        acquire::report_grant(Grant::Attached, &guard, console, Duration::ZERO);
        let shares_terminal = signals::shares_terminal();
        let guardian = match GuardianHandle::spawn(&args.command, shares_terminal) {
            Ok(guardian) => guardian,
            Err(error) => {
                console.error(format!(
                    "cannot start the guardian of the command: {error}; nothing was run"
                ));
                let _ = HoldAfter::Detached.end(guard).await;
                return Err(Exit::Failed);
            }
        };
        let supervision = Supervision::new(args, console, guard, guardian, shares_terminal);
        let conclusion = tokio::select! {
            biased;
            conclusion = supervision.run(signals) => conclusion,
            never = self.keep() => never,
        };
        if conclusion.cause != EndCause::Lost {
            self.keep_afterwards().await;
        }
        Ok(conclusion.exit)
    }

    /// Renews the hold for the time of the receipt, and then attaches this process for `--ttl`.
    async fn attach(&self) -> Result<Guard, Error> {
        let lease = &self.args.acquire.lease;
        give_back::renew_hold(self.client, self.receipt).await?;
        let mut options = Options::default();
        options.drift = lease.drift.unwrap_or_default();
        options.ttl = lease.ttl;
        options.validate()?;
        let client = self.client.clone().with_defaults(options);
        give_back::attach(&client, &self.receipt.clone().with_ttl(lease.ttl)).await
    }

    /// Renews the hold for the time of the receipt, again and again, by a client of its own: one client attaches itself once.
    /// Never resolves.
    async fn keep<T>(&self) -> T {
        loop {
            tokio::time::sleep(self.receipt.ttl() / 3).await;
            let renew = async |client: &Client| give_back::renew_hold(client, self.receipt).await;
            // After an error there are two thirds of the time left, and the end of the command comes with another renewal.
            if let Err(error) = store::with_client(self.common, renew).await {
                self.console.detail(format!(
                    "the hold was not renewed for the time of its receipt: {error:#}"
                ));
            }
        }
    }

    /// The time of the receipt begins again at the end of the command.
    async fn keep_afterwards(&self) {
        match give_back::renew_hold(self.client, self.receipt).await {
            Ok(()) if self.console.verbose => {
                let left = give_back::time_left(self.client, self.receipt).await;
                let hold = hold_text(self.receipt, left);
                self.console.detail(format!("kept {hold}"));
            }
            Ok(()) => {}
            Err(error) => self.console.notice(format!(
                "after the command the hold was not renewed, and ends earlier: {error:#}"
            )),
        }
    }

    fn done<T>(&self, outcome: Result<T, Error>) -> Result<T, Exit> {
        outcome.map_err(|error| report_error(self.console, &error, Exit::BUSY))
    }
}

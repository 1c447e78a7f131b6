//! `tenure`: hold a distributed lock while a command runs.

mod acquire;
mod args;
mod clock;
mod duration;
mod exit;
mod flocks;
mod guardian;
mod link;
mod output;
mod run;
mod signals;
mod store;
mod tree;
mod wire;

use std::process::ExitCode;

use args::{Action, Cli};
use exit::Exit;
use output::Talk;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // Before anything else: the guardian's start is on the way to every command's start.
    if arguments.get(1).is_some_and(|first| first == guardian::ARGUMENT) {
        return guardian::main(&arguments[2..]);
    }
    let cli = match args::parse(arguments) {
        Ok(cli) => cli,
        Err(exit) => return exit.into(),
    };
    let talk = Talk::new(&cli.common);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            talk.error(format!("cannot start the runtime: {error}"));
            return Exit::Failed.into();
        }
    };
    let exit = runtime.block_on(act(&cli, &talk));
    // What is left in the background is not worth waiting for: leases run out.
    runtime.shutdown_background();
    exit.into()
}

async fn act(cli: &Cli, talk: &Talk) -> Exit {
    match &cli.action {
        Action::Run(args) => run::run(&cli.common, args, talk).await,
        _ => Exit::Failed,
    }
}

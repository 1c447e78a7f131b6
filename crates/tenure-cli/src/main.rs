//! `tenure`: holds a distributed lock while a command runs.
//!
//! In this order the files can be read:
//!
//! 1. `args.rs` defines the flags, and `exit.rs` the exit codes.
//! 2. Each action has a file. `list.rs`, `status.rs`, `leader.rs`, `ask.rs`, `break_hold.rs` and `check.rs` ask the store once.
//! 3. `hold.rs`, `run.rs` and `watch.rs` go on until a signal comes. `plan.rs` and `acquire.rs` acquire the locks. `standby.rs`
//!    is `run --standby`, and `ready_file.rs` the file that exists while it leads.
//!    `take.rs`, `give_back.rs` and `run_attached.rs` are about holds that go on without a process, and `receipt.rs` about the
//!    texts under which they are known.
//! 4. `supervision.rs` is what `run` does while the command runs: `limits.rs` computes until when the command may run, and
//!    the second process in `guardian/` ends the command at these limits.
//! 5. `signals.rs`, `process_tree.rs` and `platform.rs` have what the operating system provides.
//! 6. `store.rs` connects, `console.rs` and `results.rs` print; `text.rs` and `json.rs` are the two forms of the output.
//!    `watch_frame.rs` is what `watch` draws, and `keys.rs` reads its keys.
//! 7. `bench/` and `torture.rs` test a store, and `mcp/` is a server for programs.

mod args;
mod exit;

mod ask;
mod break_hold;
mod check;
mod completion;
mod leader;
mod list;
mod status;

mod acquire;
mod give_back;
mod hold;
mod plan;
mod ready_file;
mod receipt;
mod run;
mod run_attached;
mod standby;
mod take;
mod watch;

mod guardian;
mod limits;
mod supervision;

mod platform;
mod process_tree;
mod signals;

mod clock;
mod console;
mod duration;
mod holds_table;
mod json;
mod keys;
mod lock_name;
mod results;
mod store;
mod text;
mod watch_frame;
mod whole_file;

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "mcp")]
mod mcp;
mod torture;

use std::process::ExitCode;

use args::Action;
use console::Console;
use exit::Exit;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // The other processes that `tenure` starts are this program, too. They come first, because every command waits for the
    // start of its guardian.
    match arguments.get(1).and_then(|first| first.to_str()) {
        Some(guardian::ARGUMENT) => return guardian::main(&arguments[2..]),
        #[cfg(feature = "bench")]
        Some(bench::ARGUMENT) => return bench::contender(&arguments[2..]),
        Some(torture::ARGUMENT) => return torture::worker(),
        _ => {}
    }
    args::parse(arguments).map_or_else(ExitCode::from, |cli| {
        let console = Console::new(&cli.common);
        store::block_on(&console, perform(&cli, &console)).into()
    })
}

async fn perform(args::Cli { common, action }: &args::Cli, console: &Console) -> Exit {
    match action {
        Action::Run(args) => run::run(common, args, console).await,
        Action::Hold(args) => hold::hold(common, args, console).await,
        Action::Take(args) => take::take(common, args, console).await,
        Action::Renew(args) => give_back::renew(common, args, console).await,
        Action::Release(args) => give_back::release(common, args, console).await,
        Action::List(args) => list::list(common, args, console).await,
        Action::Status(args) => status::status(common, args, console).await,
        Action::Leader(args) => leader::leader(common, args, console).await,
        Action::Ask(args) => ask::ask(common, args, console).await,
        Action::Break(args) => break_hold::break_hold(common, args, console).await,
        Action::Check(args) => check::check(common, args, console).await,
        Action::Watch(args) => watch::watch(common, args, console).await,
        #[cfg(feature = "mcp")]
        Action::Mcp(args) => mcp::mcp(common, args, console).await,
        #[cfg(feature = "bench")]
        Action::Bench(args) => bench::bench(common, args, console).await,
        Action::Torture(args) => torture::torture(common, args, console).await,
        Action::Completions(args) => completion::completions(args, console),
        Action::Man => completion::man(console),
    }
}

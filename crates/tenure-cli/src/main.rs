//! `tenure`: hold a distributed lock while a command runs.

#[cfg(feature = "bench")]
mod bench;
mod break_hold;
mod check;
mod completion;
mod hold;
mod list;
mod run;
mod status;
mod torture;
mod watch;

mod acquire;
mod args;
mod lock_name;
mod plan;

mod guardian;
mod limits;
mod platform;
mod process_tree;
mod signals;
mod supervision;

mod clock;
mod console;
mod duration;
mod exit;
mod holds_table;
mod json;
mod results;
mod store;
mod text;

use std::process::ExitCode;

use args::Action;
use console::Console;
use exit::Exit;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // Before anything else: the guardian's start is on the way to every command's start.
    match arguments.get(1).and_then(|first| first.to_str()) {
        Some(guardian::ARGUMENT) => return guardian::main(&arguments[2..]),
        #[cfg(feature = "bench")]
        Some(bench::ARGUMENT) => return bench::contender(&arguments[2..]),
        Some(torture::ARGUMENT) => return torture::worker(),
        _ => {}
    }
    args::parse(arguments).map_or_else(ExitCode::from, |cli| {
        let console = Console::new(&cli.common);
        store::block_on(&console, act(&cli, &console)).into()
    })
}

async fn act(args::Cli { common, action }: &args::Cli, console: &Console) -> Exit {
    match action {
        Action::Run(args) => run::run(common, args, console).await,
        Action::Hold(args) => hold::hold(common, args, console).await,
        Action::List(args) => list::list(common, args, console).await,
        Action::Status(args) => status::status(common, args, console).await,
        Action::Break(args) => break_hold::break_hold(common, args, console).await,
        Action::Check(args) => check::check(common, args, console).await,
        Action::Watch(args) => watch::watch(common, args, console).await,
        #[cfg(feature = "bench")]
        Action::Bench(args) => bench::bench(common, args, console).await,
        Action::Torture(args) => torture::torture(common, args, console).await,
        Action::Completions(args) => completion::completions(args, console),
        Action::Man => completion::man(console),
    }
}

//! tenure in one scenario, one line of JSON. `../README.md` has the arguments.

mod clients;
#[path = "../../../scenarios.rs"]
mod scenarios;

use std::process::ExitCode;

use scenarios::Failure;

fn main() -> ExitCode {
    scenarios::program(run)
}

async fn run(arguments: &[&str]) -> Result<String, Failure> {
    let &[program, port, ref scenario @ ..] = arguments else {
        return Err("peer PROGRAM PORT SCENARIO [ARGUMENT]...".into());
    };
    match program {
        "tenure" => scenarios::run(clients::Tenure::connect(port).await?, scenario).await,
        _ => Err("there is no such program".into()),
    }
}

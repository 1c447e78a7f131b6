//! One client, one scenario, one line of JSON. `../README.md` has the arguments.

mod clients;
#[path = "../../../scenarios.rs"]
mod scenarios;

use std::process::ExitCode;

use scenarios::Failure;

fn main() -> ExitCode {
    scenarios::program(run)
}

async fn run(arguments: &[&str]) -> Result<String, Failure> {
    let &[program, url, ref scenario @ ..] = arguments else {
        return Err("peer PROGRAM URL SCENARIO [ARGUMENT]...".into());
    };
    match program {
        "raw" => scenarios::run(clients::Raw::connect(url).await?, scenario).await,
        "tenure" => scenarios::run(clients::Tenure::connect(url).await?, scenario).await,
        "tenure-table" => {
            let url = format!("{url}?mode=table");
            let tenure = clients::Tenure::connect(&url).await?;
            scenarios::run(tenure, scenario).await
        }
        _ => Err("there is no such program".into()),
    }
}

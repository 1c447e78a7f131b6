//! One client, one scenario, one line of JSON. `../README.md` has the arguments.

mod clients;
mod delay;
mod raw_majority;
mod raw_permits;
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
        "raw" if scenario[0] == "push" => clients::push(port, scenario[1].parse()?).await,
        "raw" => scenarios::run(clients::Raw::connect(port).await?, scenario).await,
        "raw-scripts" if port.contains(',') => {
            let client = raw_majority::RawMajority::connect(port).await?;
            scenarios::run(client, scenario).await
        }
        "raw-scripts" => scenarios::run(clients::RawScripts::connect(port).await?, scenario).await,
        "tenure" if scenario[0] == "keep" => {
            clients::keep(port, scenario[1].parse()?, scenario[2].parse()?).await
        }
        "tenure" => scenarios::run(clients::Tenure::connect(port).await?, scenario).await,
        "raw-shared" => scenarios::run(clients::RawShared::connect(port).await?, scenario).await,
        "tenure-shared" => {
            let client = clients::Tenure::connect(port).await?;
            scenarios::run(clients::TenureShared(client), scenario).await
        }
        "tenure-fair" => {
            let client = clients::Tenure::connect(port).await?;
            scenarios::run(clients::TenureFair(client), scenario).await
        }
        "raw-permits" => {
            scenarios::run(raw_permits::RawPermits::connect(port).await?, scenario).await
        }
        "tenure-permits" => {
            let client = clients::Tenure::connect(port).await?;
            scenarios::run(clients::TenurePermits(client), scenario).await
        }
        "rslock" => scenarios::run(clients::Rslock::connect(port), scenario).await,
        "distributed-lock" => {
            scenarios::run(clients::DistributedLock::connect(port).await?, scenario).await
        }
        // This is no client: `peer delay PORT MS` delays messages in each direction.
        "delay" => delay::serve(port.parse()?, scenario[0].parse()?).await,
        _ => Err("there is no such program".into()),
    }
}

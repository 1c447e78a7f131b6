//! One client, one scenario, one line of JSON. `../README.md` has the arguments.

mod clients;
mod delay;
mod scenarios;

use std::process::ExitCode;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // With one worker a second thread would only be woken for each answer.
    let mut runtime = match arguments.as_slice() {
        [_, _, "free", "1", ..] => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be had");
    match runtime.block_on(run(&arguments)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peer {arguments:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[&str]) -> Result<String, Failure> {
    let &[program, port, ref scenario @ ..] = arguments else {
        return Err("peer PROGRAM PORT SCENARIO [ARGUMENT]...".into());
    };
    match program {
        "raw" if scenario[0] == "push" => clients::push(port, scenario[1].parse()?).await,
        "raw" => scenarios::run(clients::Raw::connect(port).await?, scenario).await,
        "tenure" if scenario[0] == "keep" => {
            clients::keep(port, scenario[1].parse()?, scenario[2].parse()?).await
        }
        "tenure" => scenarios::run(clients::Tenure::connect(port).await?, scenario).await,
        "rslock" => scenarios::run(clients::Rslock::connect(port), scenario).await,
        "distributed-lock" => {
            scenarios::run(clients::DistributedLock::connect(port).await?, scenario).await
        }
        // Not a client: `peer delay PORT MS` puts so much delay into each direction.
        "delay" => delay::serve(port.parse()?, scenario[0].parse()?).await,
        _ => Err("there is no such program".into()),
    }
}

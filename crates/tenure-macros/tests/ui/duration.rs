extern crate tenure_macros as tenure;

#[tenure::locked(client = locks, name = "a", wait = 5)]
async fn no_unit(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", wait = 5, ttl = 1.5)]
async fn two_mistakes(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

extern crate tenure_macros as tenure;

#[tenure::locked(client = locks, name = "a", timeout = "5s")]
async fn wrong_word(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", wait = "5s", wait = "6s")]
async fn twice(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", names = ["b"], shared, permits = 2)]
async fn both(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

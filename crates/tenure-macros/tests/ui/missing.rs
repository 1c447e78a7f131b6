extern crate tenure_macros as tenure;

#[tenure::locked]
async fn nothing(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks)]
async fn no_name(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(name = "a")]
async fn no_client(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

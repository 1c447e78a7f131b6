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

#[tenure::locked(client = locks, name = "a", transaction = pool)]
async fn no_tx(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", skip, wait = "5s")]
async fn waits(locks: &Client) -> Result<Option<()>, Error> {
    Ok(None)
}

#[tenure::locked(client = locks, name = "a", transaction = pool, tx = tx)]
fn blocks(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

extern crate tenure_macros as tenure;

#[tenure::locked(client, name = 42, names, wait)]
async fn lacking(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, names = "a", shared = true, fair = 1, guard = self.guard)]
async fn wrong(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = )]
async fn nothing(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", renew = "sometimes", owner)]
async fn renewed(locks: &Client) -> Result<(), Error> {
    Ok(())
}

#[tenure::locked(client = locks, name = "a", renew = false, drift = 5)]
async fn drifting(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

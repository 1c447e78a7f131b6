extern crate tenure_macros as tenure;

#[tenure::locked(client = locks, name = "a")]
struct Ship;

#[tenure::locked(client = self.locks, name = "a")]
impl Ship {}

trait Harbour {
    #[tenure::locked(client = self.locks, name = "a")]
    async fn ship(&self) -> Result<(), Error>;
}

#[tenure::locked(client = locks, name = "a")]
const fn constant(locks: &Client) -> Result<(), Error> {
    Ok(())
}

fn main() {}

struct Client;
struct Error;

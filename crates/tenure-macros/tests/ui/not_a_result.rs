extern crate tenure_macros as tenure;

#[tenure::locked(client = locks, name = "a")]
async fn unit(locks: &Client) {}

#[tenure::locked(client = locks, name = "a")]
async fn reference(locks: &Client) -> &'static str {
    "x"
}

#[tenure::locked(client = locks, name = "a")]
fn future(locks: &Client) -> impl Future<Output = ()> {
    async {}
}

fn main() {}

struct Client;

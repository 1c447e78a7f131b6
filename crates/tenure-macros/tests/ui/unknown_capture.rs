use tenure::{Client, Error};

#[tenure::locked(client = locks, name = "order:{number}")]
async fn ship(locks: &Client, id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}

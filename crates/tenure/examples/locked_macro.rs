//! A function, a method and a blocking function under a lock, by attribute.

use tenure::{Client, blocking};

/// An error type of the program needs a conversion from the error of a lock.
#[derive(Debug)]
enum Error {
    Lock(tenure::Error),
    OutOfStock,
}

impl From<tenure::Error> for Error {
    fn from(err: tenure::Error) -> Self {
        Self::Lock(err)
    }
}

/// `{id}` in the name is the argument `id`.
#[tenure::locked(client = locks, name = "order:{id}", wait = "5s", guard = guard)]
async fn ship(locks: &Client, id: u64) -> Result<String, Error> {
    if id == 0 {
        return Err(Error::OutOfStock);
    }
    Ok(format!("order {id} under number {}", guard.token()))
}

struct Warehouse {
    locks: Client,
    stock: u32,
}

impl Warehouse {
    #[tenure::locked(client = self.locks, name = "warehouse", label = "taking {n}")]
    async fn take(&mut self, n: u32) -> Result<u32, Error> {
        self.stock = self.stock.checked_sub(n).ok_or(Error::OutOfStock)?;
        Ok(self.stock)
    }
}

#[tenure::locked(client = locks, name = "report", wait = "0")]
fn report(locks: &blocking::Client) -> Result<usize, tenure::Error> {
    Ok("nothing happened".len())
}

fn main() -> Result<(), Error> {
    let locks = blocking::connect("memory:")?;
    println!("{} bytes", report(&locks)?);
    asynchronous()
}

#[tokio::main]
async fn asynchronous() -> Result<(), Error> {
    let locks = tenure::connect("memory:").await?;
    println!("{}", ship(&locks, 42).await?);
    assert!(matches!(ship(&locks, 0).await, Err(Error::OutOfStock)));

    let mut warehouse = Warehouse { locks, stock: 3 };
    println!("{} left", warehouse.take(2).await?);
    match warehouse.take(2).await {
        Err(Error::Lock(err)) => panic!("no other client wants the lock: {err:#}"),
        taken => println!("{taken:?}"),
    }
    Ok(())
}

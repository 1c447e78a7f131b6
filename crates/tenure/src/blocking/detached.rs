//! Detached holds without async.

use std::borrow::Borrow;

use tenure_core::Receipt;
use tenure_core::error::Error;
use tenure_core::guarantees::Capability;

use super::{Client, Guard, block_on};

impl Client {
    /// See [`Client::address`](crate::Client::address).
    pub fn address(&self) -> String {
        self.inner.address()
    }

    /// See [`Client::attach`](crate::Client::attach).
    ///
    /// # Errors
    /// As there, and [`Closed`](crate::ErrorKind::Closed) when called from async code.
    pub fn attach(&self, receipt: impl Borrow<Receipt>) -> Result<Guard, Error> {
        let inner = block_on(&self.runtime, self.inner.attach(receipt))??;
        Ok(Guard {
            inner,
            runtime: self.runtime.clone(),
            _other_runtime: None,
        })
    }

    /// See [`Client::require`](crate::Client::require).
    ///
    /// # Errors
    /// As there.
    pub fn require(&self, capability: Capability) -> Result<(), Error> {
        self.inner.require(capability)
    }
}

impl Guard {
    /// Leaves the hold in the store without this client; see [`Guard::detach`](crate::Guard::detach). A thread that has entered
    /// the lock more than once is refused.
    ///
    /// # Errors
    /// As there, and [`Closed`](crate::ErrorKind::Closed) when called from async code: the lock is then released.
    pub fn detach(self) -> Result<Receipt, Error> {
        block_on(&self.runtime, self.inner.detach())?
    }
}

//! The identity of an acquisition, and its fencing token.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

/// A number that strictly grows with each grant of a name. The protected resource checks it: the resource
/// remembers the highest number that it has seen, and refuses every smaller one.
///
/// Only a [`Guard`](crate::Guard) has one. Numbers grow, but not by one: most stores use
/// `max(last + 1, store clock in µs)`, so that numbers keep growing when the store has lost its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number.
    pub const fn new(token: u64) -> Self {
        Self(token)
    }

    /// The number, to send it to the protected resource.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// What a transaction in the store that keeps the lock can be made conditional on; from a store to its
/// [`Guard`](crate::Guard).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// etcd.
    Etcd(EtcdCompare),
    /// ZooKeeper.
    ZooKeeper(ZooKeeperCheck),
}

/// A condition that is true in etcd while the lock is held: this key exists since this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdCompare {
    /// The lock's key.
    pub key: Vec<u8>,
    /// The create revision that the key must have. For an exclusive hold that was never upgradable it is also the fencing
    /// token.
    pub create_revision: i64,
}

impl EtcdCompare {
    /// That key, since that revision.
    pub fn new(key: impl Into<Vec<u8>>, create_revision: i64) -> Self {
        Self {
            key: key.into(),
            create_revision,
        }
    }
}

/// A condition that is true in ZooKeeper while the lock is held: the node at this path has this version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZooKeeperCheck {
    /// The path of the lock's node, from the root of the ensemble. No other acquisition ever has the same path.
    pub path: String,
    /// The version that the node must have; -1 means any version, as long as the node exists.
    pub version: i32,
}

impl ZooKeeperCheck {
    /// That node, in that version.
    pub fn new(path: impl Into<String>, version: i32) -> Self {
        Self {
            path: path.into(),
            version,
        }
    }
}

/// A lock in etcd, for transactions of your own; see [`EtcdGuard::etcd`](crate::guard_traits::EtcdGuard::etcd).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLock(Vec<EtcdCompare>);

impl EtcdLock {
    /// A condition for each name of the guard.
    pub const fn new(all: Vec<EtcdCompare>) -> Self {
        Self(all)
    }

    /// The conditions to put into a transaction: one for each name that the guard holds.
    pub fn compare(&self) -> &[EtcdCompare] {
        &self.0
    }
}

/// A lock in ZooKeeper, for transactions of your own; see [`ZooKeeperGuard::zookeeper`](crate::guard_traits::ZooKeeperGuard::zookeeper).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperLock(Vec<ZooKeeperCheck>);

impl ZooKeeperLock {
    /// A check for each name of the guard.
    pub const fn new(all: Vec<ZooKeeperCheck>) -> Self {
        Self(all)
    }

    /// The checks to put into a `multi`: one for each name that the guard holds.
    pub fn check(&self) -> &[ZooKeeperCheck] {
        &self.0
    }
}

/// The random identity of one acquisition, or of one turn in which tasks pass the lock on: 128 bits from a cryptographic
/// generator.
///
/// Stores compare it before they free a lock, so it must be kept secret: a client that can read it can release the lock.
/// It is printed in full at debug level only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId([u8; 16]);

impl OwnerId {
    /// A new identity.
    pub fn random() -> Self {
        Self(rand::random::<u128>().to_ne_bytes())
    }

    /// The identity with these bytes, for stores that read it back.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.to_digits()
            .iter()
            .map(|digit| char::from(*digit))
            .collect()
    }

    /// The id that [`to_hex`](Self::to_hex) wrote.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 32 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(hex, 16))?.ok()?;
        Some(Self(number.to_be_bytes()))
    }

    /// The same as [`to_hex`](Self::to_hex), in place.
    pub fn to_digits(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|at| {
            let byte = self.0[at / 2];
            let nibble = if at % 2 == 0 { byte >> 4 } else { byte & 0xf };
            DIGITS[usize::from(nibble)]
        })
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// For maps by owner id: ids are random already, so any eight bytes of them are a hash.
pub type RandomAlready = BuildHasherDefault<FirstBytes>;

/// The hasher of [`RandomAlready`].
#[derive(Debug, Default)]
pub struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length_prefix: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let id = OwnerId::from_bytes([0x0a; 16]);
        assert_eq!(OwnerId::from_hex(&id.to_hex()), Some(id));
        let signed = format!("+{}", "0".repeat(31));
        for wrong in ["", "0a", "g".repeat(32).as_str(), &signed, &"é".repeat(16)] {
            assert_eq!(OwnerId::from_hex(wrong), None, "{wrong}");
        }
    }
}

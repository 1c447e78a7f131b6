//! What the client remembers of keys: those that the server had to be asked for, and those that other sessions have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tenure_core::error::Error;
use tenure_core::name::LockName;
use tenure_core::rt::lock;

use super::contended::ContendedKeys;
use super::control::ControlConnection;
use super::key::Key;
use super::names::{self, KeySource};
use super::requests;

/// How many keys are remembered.
const CAPACITY: usize = 10_000;

/// Finds the key of a name. The server is asked for a key once.
pub(super) struct KeyCache {
    control: Arc<ControlConnection>,
    keys: Mutex<HashMap<LockName, Key>>,
    pub(super) contended: ContendedKeys,
}

impl KeyCache {
    pub(super) fn new(control: Arc<ControlConnection>) -> Self {
        Self {
            control,
            keys: Mutex::default(),
            contended: ContendedKeys::default(),
        }
    }

    /// The key, or what the server has to be asked for.
    pub(super) fn find(&self, name: &LockName) -> Result<KeySource, Error> {
        let source = names::key(&self.control.context.settings, name)?;
        if let KeySource::AskServer(_) = source
            && let Some(key) = lock(&self.keys).get(name)
        {
            return Ok(KeySource::Computed(key.clone()));
        }
        Ok(source)
    }

    /// Asks the server for the key of a name, whose bytes [`find`](KeyCache::find) returned.
    pub(super) async fn ask(&self, name: &LockName, bytes: &[u8]) -> Result<Key, Error> {
        let key = requests::hash_key(&self.control, bytes).await?;
        let mut keys = lock(&self.keys);
        if keys.len() >= CAPACITY {
            keys.clear();
        }
        keys.insert(name.clone(), key.clone());
        Ok(key)
    }

    pub(super) async fn key(&self, name: &LockName) -> Result<Key, Error> {
        match self.find(name)? {
            KeySource::Computed(key) => Ok(key),
            KeySource::AskServer(bytes) => self.ask(name, &bytes).await,
        }
    }
}

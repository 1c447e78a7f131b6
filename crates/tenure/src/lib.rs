//! Distributed locks.

pub mod error;
pub mod fence;
pub mod guarantees;
pub mod holder;
pub mod lost;
pub mod name;
pub mod options;
pub mod time;

pub mod kernel;

pub mod backend;

pub mod driver;
pub mod rt;

pub use error::{Error, ErrorKind};

pub struct Lock;
pub struct Guard;
pub struct Client;

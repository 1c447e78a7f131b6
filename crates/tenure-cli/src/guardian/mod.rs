//! The guardian: a second process between `tenure` and the command.
//!
//! The guardian is the command's parent, and orphans below it become its children. It ends the whole tree when
//! the limits that `tenure` gave it pass without an extension (`tenure` hangs, is stopped, or lost the lock),
//! and at once when `tenure` dies. The guardian decides nothing about locks and reads the clock itself, so it is in
//! time without the help of another process.
//!
//! The guardian has one thread, no runtime, and one loop over the socket, the self-pipe and a timer.

mod channel;
mod command;
pub(crate) mod handle;
mod process;
pub(crate) mod protocol;

pub(crate) use command::find_in_path;
pub(crate) use process::main;
pub(crate) use protocol::ARGUMENT;

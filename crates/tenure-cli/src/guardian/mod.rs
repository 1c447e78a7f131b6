//! The guardian: a second process between `tenure` and the command.
//!
//! It is the command's parent, and the one who inherits every orphan below it. It ends the whole tree when
//! the limits that `tenure` gave it pass without an extension (`tenure` hangs, is stopped, or lost the lock),
//! and at once when `tenure` dies. It decides nothing about locks and keeps its own time, so it needs no one's
//! help to be in time.
//!
//! It has one thread, no runtime, and one loop over: the socket, a pipe that signals write to, a timer.

mod command;
pub(crate) mod handle;
mod process;
pub(crate) mod protocol;

pub(crate) use command::find_in_path;
pub(crate) use process::main;
pub(crate) use protocol::ARGUMENT;

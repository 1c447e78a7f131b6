//! The runtime and the clock: the only module that names either.

mod background;
mod clock;
mod flag;
mod machine;
mod mutex;
mod spawner;
pub(crate) mod sync;
mod virtual_clock;
mod wakeup;

pub use self::background::BackgroundTasks;
pub use self::clock::{Clock, nap, wall_micros, wall_now};
pub use self::flag::Flag;
pub use self::machine::host_name;
pub use self::mutex::lock;
pub use self::spawner::{Spawner, Task, apart, poll_now, yield_now};
pub use self::virtual_clock::VirtualClock;
pub use self::wakeup::NextWakeup;

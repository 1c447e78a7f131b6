//! What operating systems do differently.
//!
//! Linux has everything that `tenure run` needs. `portable.rs` does the same work with what every Unix has, and says
//! where it can do less; docs/platforms.md says it to users.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(not(target_os = "linux"), test))]
#[cfg_attr(target_os = "linux", allow(dead_code))]
mod portable;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::*;

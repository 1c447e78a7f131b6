//! The shell around the kernel.
pub mod alarm;

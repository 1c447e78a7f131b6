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

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    #[test]
    fn the_shell_finds_the_signals_that_the_kernel_says_are_ignored() {
        let signals = [
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
        ];
        assert_eq!(
            super::portable::ignored_signals(&signals),
            super::ignored_signals(&signals)
        );
    }
}

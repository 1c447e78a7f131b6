//! The differences between operating systems.
//!
//! Linux has everything that `tenure run` needs. `portable.rs` does the same work with what every Unix has. Its comments
//! name what it cannot do; docs/platforms.md is the text for users.

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
    fn the_shell_and_the_kernel_report_the_same_ignored_signals() {
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

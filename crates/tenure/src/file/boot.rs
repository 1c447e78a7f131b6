//! Which boot of the machine this is.

use std::sync::OnceLock;

/// Identifies the current boot of the machine; 0 when the system does not tell.
pub(super) fn boot_id() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

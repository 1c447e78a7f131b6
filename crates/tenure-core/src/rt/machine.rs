//! What people are told about this machine.

/// The name of this machine, for people who look at a lock.
pub fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    // Windows sets this variable for every process.
    #[cfg(windows)]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    name
}

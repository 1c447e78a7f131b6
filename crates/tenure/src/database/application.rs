//! The name of our connections in PostgreSQL, which `pg_stat_activity` shows: it says which process has a connection.

use tenure_core::holder::Holder;

/// PostgreSQL cuts longer names off.
#[cfg(feature = "postgres")]
const MAX_BYTES: usize = 63;

const BEFORE_PID: &str = "tenure pid ";
const BEFORE_HOST: &str = " on ";

/// `tenure pid 4242 on build-7`. The end of a long host name is missing.
#[cfg(feature = "postgres")]
pub(super) fn application_name(host: &str, pid: u32) -> String {
    let name = format!("{BEFORE_PID}{pid}{BEFORE_HOST}{host}");
    let fits = |(at, one): &(usize, char)| at + one.len_utf8() <= MAX_BYTES;
    let kept = name.char_indices().take_while(fits);
    kept.map(|(_, one)| one).collect()
}

/// The process that has a connection of that name. `None`: a program that names its connections in another way.
pub(crate) fn process_of(application_name: &str) -> Option<Holder> {
    let rest = application_name.strip_prefix(BEFORE_PID)?;
    let (pid, host) = rest.split_once(BEFORE_HOST)?;
    Some(Holder::new(host, pid.parse().ok()?))
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_from_the_name_of_its_connection() {
        for host in ["build-7", "", "a on b"] {
            let name = application_name(host, 4_242);
            assert_eq!(process_of(&name), Some(Holder::new(host, 4_242)));
        }
        let long = "h".repeat(62) + "ü";
        let name = application_name(&long, u32::MAX);
        assert_eq!(name.len(), MAX_BYTES);
        assert_eq!(process_of(&name).map(|it| it.pid), Some(u32::MAX));
        // Cut off within a character.
        assert_eq!(application_name(&("h".repeat(43) + "ü"), 1_234).len(), 62);
        for foreign in ["", "psql", "tenure", "tenure pid x on h"] {
            assert_eq!(process_of(foreign), None, "{foreign}");
        }
    }
}

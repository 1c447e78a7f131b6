//! From the name of a lock to the path of its directory and the names of its nodes, and back.
//! `docs/stores/zookeeper.md` is the published form of this file.

use std::num::NonZeroU32;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::queue::Contender;
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;

/// How a name becomes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// One node name; what a path cannot have in it is escaped.
    Encoded,
    /// The name is the path, as other programs write it.
    Raw,
}

/// How the nodes of contenders are named: the option `dialect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As in Curator's `InterProcessMutex`, in go-zk and in zookeeper-client.
    #[default]
    Curator,
    /// As in Curator's `InterProcessReadWriteLock`.
    ReadWrite,
    /// As in Curator's `InterProcessSemaphoreV2`.
    Semaphore,
    /// As in the recipes that come with ZooKeeper.
    SessionPrefix,
    /// As in Curator's `LeaderSelector`: the value of a candidate is all that its node has as data.
    Selector,
    /// As in Curator's `LeaderLatch`, in the same way.
    Latch,
}

impl Dialect {
    /// Whether the value of a candidate is all that its node has as data: other programs read it as the id of a participant.
    pub(super) fn has_bare_values(self) -> bool {
        matches!(self, Self::Selector | Self::Latch)
    }

    /// Whether a name can be held exclusively, so that it can have a leader.
    pub(super) fn has_elections(self) -> bool {
        self != Self::Semaphore
    }
}

/// The node at the root that belongs to the server.
pub(super) const RESERVED: &str = "zookeeper";

/// The node under which the contenders for `name` are. `root` is `/a/b`, or empty.
pub(super) fn directory(root: &str, names: Names, name: &LockName) -> Result<String, Error> {
    match names {
        Names::Encoded => Ok(format!("{root}/{}", encode(name.as_str(), root.is_empty()))),
        Names::Raw => raw(root, name.as_str()),
    }
}

/// The name as one node name. Each byte of a character that a path cannot have in it, and of `%`, is written as `%` and
/// two digits.
pub(super) fn encode(name: &str, is_at_root: bool) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    let is_whole = matches!(name, "." | "..");
    for (at, char) in name.char_indices() {
        // Unescaped, the name would be the path of the server's own node.
        let is_reserved = at == 0 && is_at_root && name == RESERVED;
        if is_whole || is_reserved || matches!(char, '/' | '%') || is_refused(char) {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(char);
        }
    }
    text
}

/// The name that [`encode`] writes as this text; `None`: there is no such name.
pub(super) fn decode(text: &str, is_at_root: bool) -> Option<LockName> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    let name = String::from_utf8(bytes).ok()?;
    (encode(&name, is_at_root) == text)
        .then(|| LockName::new(&name).ok())
        .flatten()
}

/// Whether the server refuses a path with that character. It checks UTF-16, so that every character beyond 16 bits is
/// refused too.
fn is_refused(char: char) -> bool {
    matches!(
        u32::from(char),
        0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..
    )
}

/// Whether the server accepts `path` as the path of a node.
pub(super) fn is_path(path: &str) -> bool {
    let parts = path.strip_prefix('/');
    parts.is_some_and(|parts| {
        let is_wrong = |part: &str| matches!(part, "" | "." | "..");
        !parts.split('/').any(is_wrong) && !parts.contains(is_refused)
    })
}

/// The name as a path, as other programs write it.
fn raw(root: &str, name: &str) -> Result<String, Error> {
    let name = name.strip_prefix('/').unwrap_or(name);
    let wrong = |what: &str| {
        Err(Error::new(
            ErrorKind::Invalid,
            format!("the name {what}, which names=raw cannot write; leave that option out"),
        ))
    };
    if name.split('/').any(str::is_empty) {
        return wrong("has an empty part between slashes");
    }
    if name.split('/').any(|part| matches!(part, "." | "..")) {
        return wrong("has a part `.` or `..`");
    }
    if let Some(refused) = name.chars().find(|char| is_refused(*char)) {
        let refused = refused.to_string();
        return wrong(&format!("has \"{}\" in it", Escaped(&refused)));
    }
    if root.is_empty() && name.split('/').next() == Some(RESERVED) {
        return wrong("lies under /zookeeper");
    }
    Ok(format!("{root}/{name}"))
}

/// An owner in the form in which Curator writes the identity of a contender: a UUID.
pub(super) fn uuid(owner: OwnerId) -> String {
    let hex = owner.to_hex();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

/// The beginning of all node names of that owner.
pub(super) fn own_prefix(owner: OwnerId) -> String {
    format!("_c_{}-", uuid(owner))
}

/// The name of a contender's node without its number.
pub(super) fn node(owner: OwnerId, mode: Mode) -> String {
    let prefix = own_prefix(owner);
    match mode {
        Mode::Exclusive => format!("{prefix}lock-"),
        Mode::Permits { limit } => format!("{prefix}permits-{limit}-lock-"),
        Mode::Upgradable => format!("{prefix}upgradable-lock-"),
        // Shared. The driver refuses a mode that our guarantees do not name.
        _ => format!("{prefix}shared-lock-"),
    }
}

/// The same for Curator's `InterProcessReadWriteLock`.
pub(super) fn read_write_node(owner: OwnerId, mode: Mode) -> String {
    let kind = match mode {
        Mode::Shared => READ,
        // The driver refuses a mode that our guarantees do not name.
        _ => WRITE,
    };
    own_prefix(owner) + kind
}

/// The same for Curator's `LeaderLatch`.
pub(super) fn latch_node(owner: OwnerId) -> String {
    own_prefix(owner) + "latch-"
}

/// Whether a node may be that of a `LeaderLatch`, also of a client with another dialect.
pub(super) fn is_latch(node: &str) -> bool {
    node.contains("-latch-")
}

/// The mutex that contenders for a permit hold while they wait, in the layout of Curator's `InterProcessSemaphoreV2`.
pub(super) fn semaphore_locks(dir: &str) -> Arc<str> {
    format!("{dir}/locks").into()
}

/// The directory with a node for each permit, in the same layout.
pub(super) fn semaphore_leases(dir: &str) -> Arc<str> {
    format!("{dir}{SEMAPHORE_LEASES}").into()
}

pub(super) const SEMAPHORE_LEASES: &str = "/leases";

/// The name of a permit's node there, without its number.
pub(super) fn semaphore_lease(owner: OwnerId) -> String {
    own_prefix(owner) + "lease-"
}

/// What precedes the number of a reader and of a writer in Curator's `InterProcessReadWriteLock`.
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";

/// The name of a sequential node, as the server puts it together: the number is Java's `%010d`, in which a minus takes
/// one of the ten places.
pub(super) fn numbered(stem: &str, number: i32) -> String {
    format!("{stem}{number:010}")
}

/// The beginning of all node names of that session, in the dialect of ZooKeeper's own recipes.
pub(super) fn session_prefix(session: i64) -> String {
    format!("x-{session}-")
}

/// A contender, as the name of its node describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) mode: Mode,
    /// How many children of the directory were made before this one; wraps around.
    pub(super) number: i32,
}

impl Child {
    /// `None`: the child is no contender, because its name does not end in a number.
    pub(super) fn parse(name: &str, dialect: Dialect) -> Option<Self> {
        let (stem, number) = split_number(name)?;
        let mode = match dialect {
            Dialect::Curator | Dialect::SessionPrefix | Dialect::Selector => mode(stem),
            Dialect::Semaphore | Dialect::Latch => Mode::Exclusive,
            Dialect::ReadWrite if stem.ends_with(READ) => Mode::Shared,
            Dialect::ReadWrite => Mode::Exclusive,
        };
        Some(Self {
            name: name.to_owned(),
            mode,
            number,
        })
    }

    pub(super) fn contender(&self) -> Contender {
        Contender { mode: self.mode }
    }
}

/// Splits a node name into its stem and the number that the server has put behind the stem with Java's `%010d`.
///
/// A dash before the digits belongs to the stem (`lock-0000000001`), unless there is a separator before
/// that dash as well (`lock--2147483648`, `lock--000000005`): then the number is negative, because
/// its counter has overflowed.
fn split_number(name: &str) -> Option<(&str, i32)> {
    let digits = name.len()
        - name
            .trim_end_matches(|char: char| char.is_ascii_digit())
            .len();
    // Ten digits, or a dash and nine of them.
    let stem = name.get(..name.len() - digits.min(10))?;
    let number: i64 = name.get(stem.len()..)?.parse().ok()?;
    let before = stem.strip_suffix('-');
    let before = before.filter(|before| before.ends_with(['-', '_']));
    match (digits, before) {
        (9 | 10, Some(before)) => Some((before, i32::try_from(-number).ok()?)),
        (10.., _) => Some((stem, i32::try_from(number).ok()?)),
        _ => None,
    }
}

/// The mode of the contender whose node name has that stem. A stem that is not ours means exclusive.
fn mode(stem: &str) -> Mode {
    let ours = || {
        let rest = stem.strip_prefix("_c_")?.get(36..)?.strip_prefix('-')?;
        let kind = rest.strip_suffix("-lock-")?;
        match kind {
            "shared" => return Some(Mode::Shared),
            "upgradable" => return Some(Mode::Upgradable),
            _ => {}
        }
        let limit = kind.strip_prefix("permits-")?.parse::<NonZeroU32>().ok()?;
        Some(Mode::Permits { limit })
    };
    ours().unwrap_or(Mode::Exclusive)
}

/// The contenders among these children, in the order of their numbers.
///
/// Numbers wrap around, so numbers are compared by their distance from each other: all contenders
/// that are there at the same time lie within half of the circle.
pub(super) fn contenders(children: &[String], dialect: Dialect) -> Vec<Child> {
    let mut all: Vec<_> = children
        .iter()
        .filter_map(|name| Child::parse(name, dialect))
        .collect();
    if let Some(base) = all.first().map(|first| first.number) {
        all.sort_by_key(|child| child.number.wrapping_sub(base));
    }
    all
}

/// For [`crate::fuzzing`]: text as a name, and as what lies in a store.
#[cfg(feature = "_fuzzing")]
pub(crate) fn fuzz(text: &str) {
    for is_at_root in [true, false] {
        if let Ok(name) = LockName::new(text) {
            let node = encode(text, is_at_root);
            assert!(is_path(&format!("/{node}")) && !node.contains('/'));
            assert_eq!(decode(&node, is_at_root), Some(name));
        }
        if let Some(name) = decode(text, is_at_root) {
            assert_eq!(encode(name.as_str(), is_at_root), text);
        }
    }
    if let Some(child) = Child::parse(text, Dialect::Curator) {
        assert_eq!(child.name, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    /// The published test vectors.
    #[test]
    fn names_lie_where_the_docs_say() {
        for (text, node) in [
            ("nightly-report", "nightly-report"),
            ("orders.42_x", "orders.42_x"),
            ("orders/42", "orders%2F42"),
            ("100%", "100%25"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("Straße 7", "Straße 7"),
            ("a\nb", "a%0Ab"),
            ("\u{7f}\u{85}", "%7F%C2%85"),
            ("\u{e000}", "%EE%80%80"),
            ("lock 🔒", "lock %F0%9F%94%92"),
            ("zookeeper", "%7Aookeeper"),
            ("zookeeper2", "zookeeper2"),
        ] {
            let dir = directory("", Names::Encoded, &name(text)).unwrap();
            assert_eq!(dir, format!("/{node}"), "{text:?}");
            assert_eq!(decode(node, true), Some(name(text)), "{text:?}");
        }
        let below = directory("/a/b", Names::Encoded, &name("zookeeper")).unwrap();
        assert_eq!(below, "/a/b/zookeeper");
        for foreign in ["a%", "a%2", "%2f", "%41", "%FF", "%7Aookeepers"] {
            assert_eq!(decode(foreign, true), None, "{foreign}");
        }
    }

    #[test]
    fn raw_names_are_paths() {
        let raw = |text| directory("/locks", Names::Raw, &name(text));
        assert_eq!(raw("orders/42").unwrap(), "/locks/orders/42");
        assert_eq!(raw("/orders/42").unwrap(), "/locks/orders/42");
        assert_eq!(raw("100%").unwrap(), "/locks/100%");
        for refused in ["a//b", "a/", "/", "./a", "a/..", "a\nb", "🔒"] {
            let err = raw(refused).unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid, "{refused}");
        }
        assert!(directory("", Names::Raw, &name("zookeeper/x")).is_err());
    }

    #[test]
    fn numbers_are_read_as_the_server_writes_them() {
        let number = |name: &str| Child::parse(name, Dialect::Curator).map(|child| child.number);
        let uuid = "_c_01234567-89ab-cdef-0123-456789abcdef";
        for (name, expected) in [
            (format!("{uuid}-lock-0000000007"), Some(7)),
            (format!("{uuid}-lock-2147483647"), Some(i32::MAX)),
            (format!("{uuid}-lock--2147483648"), Some(i32::MIN)),
            (format!("{uuid}-lock--000000005"), Some(-5)),
            ("x-72057594037927936-0000000003".into(), Some(3)),
            ("x-72057594037927936--000000003".into(), Some(-3)),
            ("n__lock__0000000001".into(), Some(1)),
            ("n__lock__-000000001".into(), Some(-1)),
            ("0000000004".into(), Some(4)),
            ("x12345678900000000009".into(), Some(9)),
            ("lock-000000005".into(), None),
            ("42".into(), None),
            ("".into(), None),
            ("host".into(), None),
            // No number of the server's.
            ("x-2147483648".into(), None),
        ] {
            assert_eq!(number(&name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_are_padded_as_the_server_does() {
        for (number, text) in [
            (7, "0000000007"),
            (i32::MAX, "2147483647"),
            (-5, "-000000005"),
            (i32::MIN, "-2147483648"),
        ] {
            assert_eq!(numbered("", number), text);
        }
    }

    #[test]
    fn modes_are_read_back_and_foreign_nodes_exclude() {
        let owner = OwnerId::from_bytes(*b"0123456789abcdef");
        let three = Mode::Permits {
            limit: NonZeroU32::new(3).unwrap(),
        };
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable, three] {
            let name = format!("{}0000000012", node(owner, mode));
            let child = Child::parse(&name, Dialect::Curator).unwrap();
            assert_eq!((child.mode, child.number), (mode, 12), "{name}");
            assert!(name.starts_with(&own_prefix(owner)));
        }
        assert_eq!(
            node(owner, Mode::Exclusive),
            "_c_30313233-3435-3637-3839-616263646566-lock-"
        );
        for foreign in [
            "shared-lock-0000000001",
            "_c_x-__READ__0000000001",
            "x-1-0000000001",
        ] {
            assert_eq!(
                Child::parse(foreign, Dialect::Curator).unwrap().mode,
                Mode::Exclusive
            );
        }
    }

    #[test]
    fn readers_and_writers_are_those_of_curator() {
        let owner = OwnerId::from_bytes(*b"0123456789abcdef");
        for (mode, stem) in [
            (
                Mode::Exclusive,
                "_c_30313233-3435-3637-3839-616263646566-__WRIT__",
            ),
            (
                Mode::Shared,
                "_c_30313233-3435-3637-3839-616263646566-__READ__",
            ),
        ] {
            assert_eq!(read_write_node(owner, mode), stem);
            for (digits, number) in [("0000000007", 7), ("-000000007", -7)] {
                let child = Child::parse(&format!("{stem}{digits}"), Dialect::ReadWrite).unwrap();
                assert_eq!((child.mode, child.number), (mode, number), "{stem}");
            }
        }
        let latch = format!("{}-000000007", latch_node(owner));
        let latch = Child::parse(&latch, Dialect::Latch).unwrap();
        assert_eq!((latch.mode, latch.number), (Mode::Exclusive, -7));
        assert!(is_latch(&latch.name) && !is_latch(&node(owner, Mode::Exclusive)));
        let mutex = Child::parse("_c_x-lock-0000000001", Dialect::ReadWrite);
        assert_eq!(mutex.unwrap().mode, Mode::Exclusive);
    }

    #[test]
    fn order_survives_the_overflow() {
        let names = [
            "lock--000000001",
            "lock-2147483646",
            "host",
            "lock--2147483648",
            "lock-2147483647",
        ];
        let numbers = |names: &[&str]| -> Vec<_> {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            let sorted = contenders(&names, Dialect::Curator);
            sorted.iter().map(|child| child.number).collect()
        };
        let near = [names[1], names[2], names[3], names[4]];
        assert_eq!(numbers(&near), [i32::MAX - 1, i32::MAX, i32::MIN]);
        assert_eq!(
            numbers(&["a-0000000001", "b-0000000000", "c--000000001"]),
            [-1, 0, 1]
        );
        assert_eq!(numbers(&names[2..3]), [0_i32; 0]);
    }

    #[test]
    fn hostile_names_stay_apart_and_are_nodes() {
        use tenure_core::conformance::hostile::written;
        for is_at_root in [true, false] {
            let write = |name: &str| encode(name, is_at_root);
            written::assert_apart(|name| vec![write(name)]);
            written::assert_read_back(write, |text| {
                decode(text, is_at_root).map(|name| name.as_str().to_owned())
            });
            for name in written::many() {
                let path = format!("/{}", write(&name));
                assert!(is_path(&path) && path.rfind('/') == Some(0), "{path:?}");
                assert!(!is_at_root || path != "/zookeeper", "{path:?}");
            }
        }
    }
}

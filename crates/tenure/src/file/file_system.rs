//! Kinds of file systems, and whether locks in them can be trusted.

use rustix::fs::StatFs;

/// A kind of file system, and whether locks in it can be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystem {
    pub(super) name: &'static str,
    pub(super) kind: FileSystemKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// On a disk of this host.
    Local,
    /// In memory: counters do not survive a restart of the host, nor do the locks.
    Memory,
    /// Local, but the lower layer of a file may be swapped under it.
    #[cfg(not(target_vendor = "apple"))]
    Overlay,
    /// A server or another program implements the locks, and decides what they promise.
    Remote,
}

impl FileSystem {
    #[cfg(not(target_vendor = "apple"))]
    pub(super) fn of(stat: &StatFs) -> Option<Self> {
        #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)]
        // the type differs between systems
        let magic = stat.f_type as u64 & 0xffff_ffff;
        let known = KNOWN.iter().find(|(known, ..)| *known == magic);
        known.map(|&(_, name, kind)| Self { name, kind })
    }

    /// On macOS `f_type` is a number that the running system gave out; the name is what stays.
    #[cfg(target_vendor = "apple")]
    pub(super) fn of(stat: &StatFs) -> Option<Self> {
        let bytes = stat.f_fstypename.iter().map(|byte| byte.cast_unsigned());
        let found: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        let known = KNOWN.iter().find(|(name, _)| name.as_bytes() == found);
        known.map(|&(name, kind)| Self { name, kind })
    }
}

/// Magic numbers of `statfs(2)`.
#[cfg(not(target_vendor = "apple"))]
const KNOWN: [(u64, &str, FileSystemKind); 14] = [
    (0xef53, "ext2/3/4", FileSystemKind::Local),
    (0x5846_5342, "xfs", FileSystemKind::Local),
    (0x9123_683e, "btrfs", FileSystemKind::Local),
    (0xf2f5_2010, "f2fs", FileSystemKind::Local),
    (0x2fc1_2fc1, "zfs", FileSystemKind::Local),
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58f6, "ramfs", FileSystemKind::Memory),
    (0x794c_7630, "overlayfs", FileSystemKind::Overlay),
    (0x6969, "nfs", FileSystemKind::Remote),
    (0xff53_4d42, "cifs", FileSystemKind::Remote),
    (0xfe53_4d42, "smb2", FileSystemKind::Remote),
    (0x6573_5546, "fuse", FileSystemKind::Remote),
    (0x0102_1997, "9p", FileSystemKind::Remote),
    (0x00c3_6400, "ceph", FileSystemKind::Remote),
];

/// Names in `statfs(2)`.
#[cfg(target_vendor = "apple")]
const KNOWN: [(&str, FileSystemKind); 9] = [
    ("apfs", FileSystemKind::Local),
    ("hfs", FileSystemKind::Local),
    ("tmpfs", FileSystemKind::Memory),
    ("nfs", FileSystemKind::Remote),
    ("smbfs", FileSystemKind::Remote),
    ("afpfs", FileSystemKind::Remote),
    ("webdav", FileSystemKind::Remote),
    ("macfuse", FileSystemKind::Remote),
    ("osxfuse", FileSystemKind::Remote),
];

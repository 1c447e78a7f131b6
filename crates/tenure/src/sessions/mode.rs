//! How an acquisition has its key in the server.

use tenure_core::options::Mode;

/// The mode of an acquisition, as far as the server's locks have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyMode {
    Exclusive,
    Shared,
    /// The key is shared, and the session also has the key of the one upgradable hold.
    Upgradable,
    /// As `Upgradable`, and the session also has the key exclusively, or has asked for that.
    Upgraded,
    /// The key is exclusive or shared: the change from the one to the other is under way.
    Weakening,
}

impl KeyMode {
    /// Whether the hold needs a session of its own: an upgrade waits on the session that has the hold, and a session that
    /// waits can do nothing else.
    pub(super) fn reserves_session(self) -> bool {
        matches!(self, Self::Upgradable | Self::Upgraded)
    }
}

impl From<Mode> for KeyMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Upgradable => Self::Upgradable,
            _ => Self::Exclusive,
        }
    }
}

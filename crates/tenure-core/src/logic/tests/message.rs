//! What clients and store say to each other.

use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    Ask { who: u8, sent: Time },
    Touch { who: u8, sent: Time },
    Renew { who: u8, sent: Time },
    Release { who: u8, unclean: bool },
    Write { who: u8, token: u64 },
    Granted { who: u8, sent: Time, token: u64 },
    Queued { who: u8, sent: Time, token: u64 },
    Busy { who: u8 },
    Renewed { who: u8, sent: Time },
    Refused { who: u8 },
    Woken { who: u8, token: u64 },
}

impl Message {
    pub(super) fn who(self) -> u8 {
        match self {
            Self::Ask { who, .. }
            | Self::Touch { who, .. }
            | Self::Renew { who, .. }
            | Self::Release { who, .. }
            | Self::Write { who, .. }
            | Self::Granted { who, .. }
            | Self::Queued { who, .. }
            | Self::Busy { who }
            | Self::Renewed { who, .. }
            | Self::Refused { who }
            | Self::Woken { who, .. } => who,
        }
    }

    pub(super) fn token(self) -> Option<u64> {
        match self {
            Self::Write { token, .. }
            | Self::Granted { token, .. }
            | Self::Queued { token, .. }
            | Self::Woken { token, .. } => Some(token),
            _ => None,
        }
    }

    pub(super) fn sent(self) -> Option<Time> {
        match self {
            Self::Ask { sent, .. }
            | Self::Touch { sent, .. }
            | Self::Renew { sent, .. }
            | Self::Granted { sent, .. }
            | Self::Queued { sent, .. }
            | Self::Renewed { sent, .. } => Some(sent),
            _ => None,
        }
    }
}

/// One of each kind of message.
pub(super) const KINDS: [Message; 11] = [
    Message::Ask {
        who: 0,
        sent: Time::ZERO,
    },
    Message::Touch {
        who: 0,
        sent: Time::ZERO,
    },
    Message::Renew {
        who: 0,
        sent: Time::ZERO,
    },
    Message::Release {
        who: 0,
        unclean: false,
    },
    Message::Write { who: 0, token: 0 },
    Message::Granted {
        who: 0,
        sent: Time::ZERO,
        token: 0,
    },
    Message::Queued {
        who: 0,
        sent: Time::ZERO,
        token: 0,
    },
    Message::Busy { who: 0 },
    Message::Renewed {
        who: 0,
        sent: Time::ZERO,
    },
    Message::Refused { who: 0 },
    Message::Woken { who: 0, token: 0 },
];

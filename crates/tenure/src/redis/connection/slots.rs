//! The slots of a cluster: which one a key has, and what the nodes say about slots and addresses.

use std::sync::LazyLock;

use redis::Value;

use tenure_core::url::Host;

/// Slots of a Redis Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Slots that follow each other, and the primary that has them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Host,
}

/// The reply of `asked` to `CLUSTER SLOTS`. `None`: the reply has another shape.
pub(super) fn parse(reply: &Value, asked: &Host) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else {
            return None;
        };
        // First, last, the primary, replicas.
        let [first, last, Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let (first, last) = (number(first)?, number(last)?);
        let [name, port, rest @ ..] = &primary[..] else {
            return None;
        };
        let primary = Host {
            // For an unknown host name the node reports a question mark, and the address in the details.
            name: text(name)
                .filter(|name| name != "?")
                .or_else(|| detail(rest, "ip"))
                .unwrap_or_else(|| asked.name.clone()),
            port: number(port)?,
        };
        (first <= last && last < SLOTS).then_some(SlotRange {
            first,
            last,
            primary,
        })
    };
    ranges.iter().map(range).collect()
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// A text that is not empty.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok()?,
        Value::SimpleString(text) => text.clone(),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

/// What follows `key` in the details of a node: its id, and since version 7 a list of keys and values.
fn detail(details: &[Value], key: &str) -> Option<String> {
    match details.get(1)? {
        Value::Array(pairs) => {
            let mut pairs = pairs.chunks(2);
            let pair = pairs.find(|pair| text(&pair[0]).as_deref() == Some(key))?;
            text(pair.get(1)?)
        }
        Value::Map(pairs) => {
            let mut pairs = pairs.iter();
            let (_, value) = pairs.find(|(known, _)| text(known).as_deref() == Some(key))?;
            text(value)
        }
        _ => None,
    }
}

/// The node that `asked` names: `HOST:PORT`, where an empty host is that of `asked`.
pub(super) fn address(text: &str, asked: &Host) -> Option<Host> {
    let (name, port) = text.rsplit_once(':')?;
    let name = match name.trim_start_matches('[').trim_end_matches(']') {
        "" | "?" => &asked.name,
        name => name,
    };
    Some(Host {
        name: name.to_owned(),
        port: port.parse().ok()?,
    })
}

/// The least number whose decimal digits have that slot.
pub(crate) fn slot_tag(slot: u16) -> u32 {
    SLOT_TAGS[usize::from(slot)]
}

/// Computed once: that takes a hundred thousand checksums, since 109,757 is the first number with the last slot.
static SLOT_TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut least = vec![None; usize::from(SLOTS)];
    let mut missing = least.len();
    for n in 0_u32.. {
        let tag = &mut least[usize::from(slot(&n.to_string()))];
        if tag.is_none() {
            *tag = Some(n);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    least.into_iter().flatten().collect()
});

/// The part of a key that decides about its slot, as the specification of Redis Cluster says.
pub(crate) fn hashed(key: &str) -> &str {
    if let Some((_, rest)) = key.split_once('{')
        && let Some((tag, _)) = rest.split_once('}')
        && !tag.is_empty()
    {
        return tag;
    }
    key
}

/// The slot of a key: CRC-16 (XMODEM: polynomial 0x1021, start 0) modulo 16,384.
pub(crate) fn slot(key: &str) -> u16 {
    let crc = hashed(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ (if crc & 0x8000 == 0 { 0 } else { 0x1021 })
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        let name = name.to_owned();
        Host { name, port }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn slots_are_read_whatever_a_node_calls_itself() {
        let asked = host("asked", 1);
        let node = |details: Vec<Value>| {
            let range = vec![Value::Int(0), Value::Int(5), Value::Array(details)];
            parse(&Value::Array(vec![Value::Array(range)]), &asked)
                .map(|mut ranges| ranges.remove(0).primary.to_string())
        };
        let port = || Value::Int(7000);
        let ip = || Value::Array(vec![bulk("ip"), bulk("10.0.0.1")]);
        for (details, found) in [
            (vec![bulk("10.0.0.2"), port()], "10.0.0.2:7000"),
            (vec![bulk("::1"), port(), bulk("id")], "[::1]:7000"),
            (vec![bulk(""), port(), bulk("id")], "asked:7000"),
            (vec![Value::Nil, port(), bulk("id")], "asked:7000"),
            (vec![bulk("?"), port(), bulk("id"), ip()], "10.0.0.1:7000"),
            (vec![bulk("?"), port(), bulk("id")], "asked:7000"),
        ] {
            assert_eq!(node(details).as_deref(), Some(found));
        }
        assert_eq!(node(vec![bulk("x")]), None);
        assert_eq!(parse(&Value::Okay, &asked), None);
        assert_eq!(parse(&Value::Array(Vec::new()), &asked), Some(Vec::new()));
    }

    #[test]
    fn addresses_are_read_whatever_stands_for_the_host() {
        let asked = host("asked", 1);
        let read = |text| address(text, &asked).map(|host| host.to_string());
        assert_eq!(read("10.0.0.1:6381").as_deref(), Some("10.0.0.1:6381"));
        assert_eq!(read(":6381").as_deref(), Some("asked:6381"));
        assert_eq!(read("?:6381").as_deref(), Some("asked:6381"));
        assert_eq!(read("::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(read("[::1]:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(read("6381"), None);
    }

    /// From the cluster specification, and compared with a server.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
    }

    #[test]
    fn every_slot_has_a_tag() {
        for number in 0..SLOTS {
            assert_eq!(slot(&slot_tag(number).to_string()), number);
        }
        assert_eq!(slot_tag(slot("}")), 5305);
    }
}

//! MySQL, MariaDB and PostgreSQL. Each statement of the library begins with a comment that says what it does,
//! `/*tenure:acquire*/` in a table store and `/* tenure:acquire */` in a session store.

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::Proxy;

impl Proxy {
    /// In front of a MySQL or MariaDB; clients must not use TLS.
    pub fn mysql(target: u16) -> Self {
        Self::sql(target, WireProtocol::MySql)
    }

    /// In front of a PostgreSQL; clients must not use TLS.
    pub fn postgres(target: u16) -> Self {
        Self::sql(target, WireProtocol::Postgres)
    }

    fn sql(target: u16, wire_protocol: WireProtocol) -> Self {
        Self::start(target, move |control, client, server| {
            let is_greeted = false;
            let protocol = Sql {
                wire_protocol,
                is_greeted,
            };
            serve(control, client, server, protocol)
        })
    }
}

#[derive(Clone, Copy)]
enum WireProtocol {
    MySql,
    Postgres,
}

struct Sql {
    wire_protocol: WireProtocol,
    /// The client has sent its first message.
    is_greeted: bool,
}

impl Protocol for Sql {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let length = self.wire_protocol.message_length(buffer, self.is_greeted)?;
        let message = buffer.get(..length)?;
        self.is_greeted = true;
        Some((length, request(message)))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let reply = Reply {
            id: ReplyId::NextBytes,
            will_be_repeated: false,
        };
        (!buffer.is_empty()).then_some((buffer.len(), reply))
    }

    fn error(&self, _: &[u8], text: &str) -> Vec<u8> {
        match text.split_once(' ') {
            Some((code, text)) => self.wire_protocol.error(code, text),
            None => match self.wire_protocol {
                WireProtocol::MySql => self.wire_protocol.error("1040", "Too many connections"),
                WireProtocol::Postgres => {
                    self.wire_protocol.error("53300", "no connection is left")
                }
            },
        }
    }
}

/// What a message of a client does, by the comment in its text.
fn request(message: &[u8]) -> Request {
    let text = String::from_utf8_lossy(message);
    let table = text.split_once("/*tenure:");
    let session = text.split_once("/* tenure:");
    let Some((_, rest)) = table.or(session) else {
        return Request::default();
    };
    let kind = rest.split([' ', '*']).next().unwrap_or_default();
    // Statements that set up a connection, or are about notifications.
    let is_set_up = matches!(kind, "facts" | "hello" | "init");
    // A session store also sends these by the clock, so the number of its requests does not include them.
    let is_timed = table.is_none() && !matches!(kind, "acquire" | "release" | "renew" | "wait");
    Request {
        kind: Some(kind.to_owned()),
        name: (!is_set_up).then(|| kind.to_owned()),
        is_counted: !is_set_up && !is_timed,
        reply: ReplyId::NextBytes,
        own_answer: None,
    }
}

impl WireProtocol {
    fn message_length(self, buffer: &[u8], is_greeted: bool) -> Option<usize> {
        match self {
            // Three bytes of length, and a number.
            Self::MySql => {
                let bytes = buffer.get(..3)?;
                let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                Some(4 + length as usize)
            }
            // A letter, but for the first message, and four bytes of length, which count themselves.
            Self::Postgres => {
                let start = usize::from(is_greeted);
                let bytes = buffer.get(start..start + 4)?;
                Some(start + u32::from_be_bytes(bytes.try_into().ok()?) as usize)
            }
        }
    }

    fn error(self, code: &str, text: &str) -> Vec<u8> {
        match self {
            Self::MySql => mysql_error(code.parse().unwrap(), text),
            Self::Postgres => postgres_error(code, text),
        }
    }
}

fn mysql_error(code: u16, text: &str) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend(code.to_le_bytes());
    payload.extend(b"#08004");
    payload.extend(text.bytes());
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    let mut packet = vec![length[0], length[1], length[2], 1];
    packet.extend(payload);
    packet
}

fn postgres_error(code: &str, text: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    for (kind, value) in [(b'S', "ERROR"), (b'V', "ERROR"), (b'C', code), (b'M', text)] {
        fields.push(kind);
        fields.extend(value.bytes());
        fields.push(0);
    }
    fields.push(0);
    let mut message = vec![b'E'];
    message.extend(u32::try_from(4 + fields.len()).unwrap().to_be_bytes());
    message.extend(fields);
    // The second message says that the server is ready for the next statement.
    message.extend(b"Z\0\0\0\x05I");
    message
}

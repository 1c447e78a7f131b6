//! Frames and messages of Hazelcast's Open Binary Client Protocol 2. All numbers are little endian.
//!
//! After a connection is open, the client sends the three bytes of [`PROTOCOL`]. From then on each side sends messages. A
//! message is a sequence of frames; the last one has the flag [`FINAL`].
//!
//! A frame:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | the length of the frame with its six bytes of header, i32 |
//! | 4..6 | flags, u16 |
//! | 6.. | the content |
//!
//! The content of the first frame has the values of fixed length:
//!
//! | bytes | in a request | in a reply |
//! | --- | --- | --- |
//! | 0..4 | type of the message, i32 | type of the request plus one; 0 for an error |
//! | 4..12 | number of the request, i64 | the same number |
//! | 12.. | partition, i32, always -1 here; then values | count of backups, u8; then values |
//!
//! Each value of variable length has a frame of its own, or several between a frame with [`BEGIN`] and one with [`END`].

/// The first bytes of a connection.
pub(crate) const PROTOCOL: &[u8; 3] = b"CP2";

/// A message that is not cut into fragments has both flags of fragments in its first frame.
const UNFRAGMENTED: u16 = 0xc000;
/// The last frame of a message.
const FINAL: u16 = 0x2000;
/// The begin of a list or of a structure.
const BEGIN: u16 = 0x1000;
/// The end of a list or of a structure.
const END: u16 = 0x0800;
/// A value that is absent.
const NULL: u16 = 0x0400;
/// A message that answers no request.
const EVENT: u16 = 0x0200;

/// The length of a frame without content.
const HEADER: usize = 6;

/// Where the number of a request stands in its bytes: after the header of the first frame and the type.
const NUMBER_AT: usize = HEADER + 4;

/// Where the values of a request begin in its first frame.
const VALUES_OF_REQUEST: usize = 16;

/// Where the values of a reply begin in its first frame.
const VALUES_OF_REPLY: usize = 13;

/// The longest message that is read. A reply has some hundred bytes; that of an error, with the stack of the server, some
/// ten thousand.
const MAX_MESSAGE: usize = 4 << 20;

/// The bytes are no message of this protocol; the text says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// One frame of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    flags: u16,
    content: Vec<u8>,
}

impl Frame {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A whole message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    frames: Vec<Frame>,
}

impl Message {
    /// The type of the message.
    pub(crate) fn kind(&self) -> Option<i32> {
        self.fixed(0).map(i32::from_le_bytes)
    }

    /// The number of the request that the message answers; `None`: it answers none.
    pub(crate) fn number(&self) -> Option<i64> {
        let is_event = self.frames.first()?.has(EVENT);
        let number = self.fixed(4).map(i64::from_le_bytes);
        number.filter(|_| !is_event)
    }

    /// The values of the reply.
    pub(crate) fn values(&self) -> Values<'_> {
        Values {
            fixed: self.content().get(VALUES_OF_REPLY..).unwrap_or_default(),
            frames: self.frames.get(1..).unwrap_or_default(),
        }
    }

    fn content(&self) -> &[u8] {
        self.frames.first().map_or(&[], |frame| &frame.content)
    }

    fn fixed<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.content().get(at..at + N)?.try_into().ok()
    }
}

/// Reads the values of a reply in their order. Each method returns `None` when there is no such value.
pub(crate) struct Values<'a> {
    fixed: &'a [u8],
    frames: &'a [Frame],
}

impl<'a> Values<'a> {
    /// The next value of one byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    /// The next value of four bytes.
    pub(crate) fn int(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    /// The next value of eight bytes.
    pub(crate) fn long(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.fixed.split_first_chunk()?;
        self.fixed = rest;
        Some(*value)
    }

    /// The next value of variable length is a text. A text that is not UTF-8 is read with marks in place of what is wrong.
    pub(crate) fn text(&mut self) -> Option<String> {
        let frame = self.frame()?;
        (!frame.has(NULL | BEGIN | END))
            .then(|| String::from_utf8_lossy(&frame.content).into_owned())
    }

    /// The same for a text that may be absent.
    pub(crate) fn text_or_null(&mut self) -> Option<Option<String>> {
        if self.frames.first()?.has(NULL) {
            self.frame()?;
            return Some(None);
        }
        self.text().map(Some)
    }

    /// The next value is a list or a structure: enters it. After this its values are read.
    pub(crate) fn enter(&mut self) -> Option<()> {
        self.frame()?.has(BEGIN).then_some(())
    }

    /// The next value is a frame with values of fixed length, which are read after this.
    pub(crate) fn enter_fixed(&mut self) -> Option<()> {
        let frame = self.frame()?;
        if frame.has(NULL | BEGIN | END) {
            return None;
        }
        self.fixed = &frame.content;
        Some(())
    }

    /// Leaves a list or a structure, whatever is left in it: a newer server may have added values.
    pub(crate) fn leave(&mut self) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            let frame = self.frame()?;
            if frame.has(BEGIN) {
                depth += 1;
            } else if frame.has(END) {
                depth -= 1;
            }
        }
        Some(())
    }

    /// Skips one value of variable length.
    pub(crate) fn skip(&mut self) -> Option<()> {
        match self.frame()? {
            frame if frame.has(BEGIN) => self.leave(),
            frame if frame.has(END) => None,
            _ => Some(()),
        }
    }

    fn frame(&mut self) -> Option<&'a Frame> {
        let (frame, rest) = self.frames.split_first()?;
        self.frames = rest;
        Some(frame)
    }
}

/// Finds messages in the bytes of the server, however the bytes are cut.
#[derive(Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    /// The length of `frames` in bytes.
    length: usize,
}

impl Decoder {
    /// Adds bytes that have arrived.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message; `None`: more bytes are needed. After an error nothing more can be read from this connection.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Malformed> {
        let (mut at, mut message) = (0, None);
        while message.is_none() {
            let Some((frame, length)) = first_frame(&self.bytes[at..])? else {
                break;
            };
            at += length;
            self.length += length;
            if self.length > MAX_MESSAGE {
                return Err(Malformed("a message is too long"));
            }
            if self.frames.is_empty() && frame.flags & UNFRAGMENTED != UNFRAGMENTED {
                return Err(Malformed("a message comes in fragments"));
            }
            let is_last = frame.has(FINAL);
            self.frames.push(frame);
            if is_last {
                self.length = 0;
                message = Some(Message {
                    frames: std::mem::take(&mut self.frames),
                });
            }
        }
        self.bytes.drain(..at);
        Ok(message)
    }
}

/// The first frame, and its length with the header.
fn first_frame(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let length = usize::try_from(i32::from_le_bytes(*length))
        .ok()
        .filter(|length| (HEADER..=MAX_MESSAGE).contains(length))
        .ok_or(Malformed("the length of a frame cannot be"))?;
    let (Some((flags, _)), Some(content)) = (rest.split_first_chunk(), bytes.get(HEADER..length))
    else {
        return Ok(None);
    };
    let frame = Frame {
        flags: u16::from_le_bytes(*flags),
        content: content.to_vec(),
    };
    Ok(Some((frame, length)))
}

/// Writes a request.
#[derive(Clone)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
    /// Where the last frame begins.
    last: usize,
}

impl Encoder {
    /// A request of this type. Its number is added when it is sent.
    pub(crate) fn new(kind: i32) -> Self {
        let mut content = [0; VALUES_OF_REQUEST];
        content[..4].copy_from_slice(&kind.to_le_bytes());
        content[12..].copy_from_slice(&(-1_i32).to_le_bytes());
        let mut encoder = Self {
            bytes: Vec::with_capacity(160),
            last: 0,
        };
        encoder.frame(UNFRAGMENTED, &content);
        encoder
    }

    /// Adds a value of fixed length to the last frame that was written.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.set_length();
        self
    }

    /// Adds a number of eight bytes to that frame.
    pub(crate) fn long(self, value: i64) -> Self {
        self.fixed(&value.to_le_bytes())
    }

    /// Adds an identifier to that frame: whether it is absent, u8, then two halves of eight bytes.
    pub(crate) fn uuid(self, value: u128) -> Self {
        let [high, low] = [value >> 64, value & u128::from(u64::MAX)];
        let half = |part: u128| u64::try_from(part).unwrap_or(u64::MAX).to_le_bytes();
        self.fixed(&[0]).fixed(&half(high)).fixed(&half(low))
    }

    /// A frame with a text.
    pub(crate) fn text(mut self, text: &str) -> Self {
        self.frame(0, text.as_bytes());
        self
    }

    /// A frame with a text that may be absent.
    pub(crate) fn text_or_null(mut self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(text),
            None => {
                self.frame(NULL, &[]);
                self
            }
        }
    }

    /// The begin of a list or a structure.
    pub(crate) fn begin(mut self) -> Self {
        self.frame(BEGIN, &[]);
        self
    }

    /// An empty frame, to which values of fixed length are added.
    pub(crate) fn begin_fixed(mut self) -> Self {
        self.frame(0, &[]);
        self
    }

    /// The end of a list or a structure.
    pub(crate) fn end(mut self) -> Self {
        self.frame(END, &[]);
        self
    }

    /// The bytes of the request under this number.
    pub(crate) fn finish(&self, number: i64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
        let flags = self.last + 4;
        let last = u16::from_le_bytes([bytes[flags], bytes[flags + 1]]) | FINAL;
        bytes[flags..flags + 2].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    fn frame(&mut self, flags: u16, content: &[u8]) {
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&flags.to_le_bytes());
        self.bytes.extend_from_slice(content);
        self.set_length();
    }

    fn set_length(&mut self) {
        let length = self.bytes.len() - self.last;
        // Names have at most a thousand bytes, and the texts of a URL are shorter than the arguments of a program may be.
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(parts: &[&[u8]]) -> Vec<Message> {
        let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
        for part in parts {
            decoder.add(part);
            while let Some(message) = decoder.next().unwrap() {
                messages.push(message);
            }
        }
        messages
    }

    #[test]
    fn a_request_has_the_published_bytes() {
        let request = Encoder::new(0x07_0400).begin().text("job").end();
        let expected = [
            &[22, 0, 0, 0, 0, 0xc0, 0, 4, 7, 0][..],
            &[9, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            &[6, 0, 0, 0, 0, 0x10],
            &[9, 0, 0, 0, 0, 0, b'j', b'o', b'b'],
            &[6, 0, 0, 0, 0, 0x28],
        ]
        .concat();
        assert_eq!(request.finish(9), expected);
        let one = Encoder::new(1).long(-2).uuid(1 << 64 | 2).finish(0);
        assert_eq!(one[..6], [47, 0, 0, 0, 0, 0xe0]);
        assert_eq!(one[22..30], (-2_i64).to_le_bytes());
        assert_eq!(
            one[30..],
            [0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn messages_are_found_however_their_bytes_are_cut() {
        let one = Encoder::new(5).text("a").finish(1);
        let two = Encoder::new(6).finish(2);
        let both = [one, two].concat();
        let whole = decode(&[&both]);
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].kind(), whole[0].number()), (Some(5), Some(1)));
        assert_eq!((whole[1].kind(), whole[1].number()), (Some(6), Some(2)));
        for cut in 0..both.len() {
            let (begin, end) = both.split_at(cut);
            assert_eq!(decode(&[begin, end]), whole, "{cut}");
        }
        let bytes: Vec<&[u8]> = both.chunks(1).collect();
        assert_eq!(decode(&bytes), whole);
    }

    #[test]
    fn what_a_newer_server_adds_is_skipped() {
        let reply = Encoder::new(1)
            .long(7)
            .begin()
            .text("old")
            .begin()
            .text("new")
            .end();
        let reply = reply.end().text("behind").finish(1);
        let messages = decode(&[&reply]);
        let mut values = messages[0].values();
        values.enter().unwrap();
        assert_eq!(values.text().as_deref(), Some("old"));
        values.leave().unwrap();
        assert_eq!(values.text().as_deref(), Some("behind"));
        assert_eq!((values.text(), values.skip()), (None, None));
        let mut values = messages[0].values();
        values.skip().unwrap();
        assert_eq!(values.text_or_null(), Some(Some("behind".into())));
        assert_eq!(values.leave(), None);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [
            &[5, 0, 0, 0][..],
            &[0xff; 6],
            &[0, 0, 0, 0x7f],
            &[6, 0, 0, 0, 0, 0x40],
        ] {
            let mut decoder = Decoder::default();
            decoder.add(bytes);
            assert!(decoder.next().is_err(), "{bytes:?}");
        }
        // A message that never ends.
        let mut decoder = Decoder::default();
        let frame = [&[0, 0, 1, 0, 0, 0xc0][..], &[0; (1 << 16) - 6]].concat();
        let read = (0..100).find_map(|_| {
            decoder.add(&frame);
            decoder.next().err()
        });
        assert_eq!(read, Some(Malformed("a message is too long")));
    }

    #[test]
    fn an_event_answers_no_request() {
        let mut event = Encoder::new(1).finish(3);
        event[5] |= 0x02;
        assert_eq!(decode(&[&event])[0].number(), None);
    }
}

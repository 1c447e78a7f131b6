//! The messages that this store uses: the type of each, and its values in their order. The types and the layouts are the
//! same in the servers 5.3, 5.4 and 5.5.
//!
//! *Fixed* values stand in the first frame of the message (see `frame`), all others have frames of their own. A reply has the
//! type of its request plus one.
//!
//! The structure of a CP group, in requests and in replies: `BEGIN`, a frame with seed i64 and id i64, its name as a text,
//! `END`.

use crate::frame::{Encoder, Message, Values};

/// The type of an error.
///
/// The values of an error: `BEGIN`, then for the error and for each of its causes a structure: `BEGIN`, a frame with the code i32, the
/// class as a text, the message as a text or `NULL`, the stack as a list, `END`; then `END`.
const ERROR: i32 = 0;

/// A request and how its reply is read.
pub(crate) struct Call<T> {
    pub(crate) request: Encoder,
    kind: i32,
    read: fn(&mut Values<'_>) -> Option<T>,
}

impl<T> Clone for Call<T> {
    fn clone(&self) -> Self {
        Self {
            request: self.request.clone(),
            ..*self
        }
    }
}

/// Why a message is not the reply that its request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// The server answered with an error.
    Refused(ServerError),
    /// The values are not those of this message.
    Malformed,
}

/// An error of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerError {
    pub(crate) code: i32,
    /// The Java class.
    pub(crate) class: String,
    pub(crate) message: String,
}

impl<T> Call<T> {
    fn new(kind: i32, read: fn(&mut Values<'_>) -> Option<T>, request: Encoder) -> Self {
        Self {
            request,
            kind,
            read,
        }
    }

    /// Reads the reply.
    pub(crate) fn read(&self, reply: &Message) -> Result<T, NoReply> {
        match reply.kind() {
            Some(ERROR) => {
                Err(read_error(&mut reply.values()).map_or(NoReply::Malformed, NoReply::Refused))
            }
            Some(kind) if kind == self.kind + 1 => {
                (self.read)(&mut reply.values()).ok_or(NoReply::Malformed)
            }
            _ => Err(NoReply::Malformed),
        }
    }
}

fn read_error(values: &mut Values<'_>) -> Option<ServerError> {
    values.enter()?;
    values.enter()?;
    values.enter_fixed()?;
    let code = values.int()?;
    let class = values.text()?;
    let message = values.text_or_null()?.unwrap_or_default();
    Some(ServerError {
        code,
        class,
        message,
    })
}

/// A reply without values that matter.
fn nothing(_: &mut Values<'_>) -> Option<()> {
    Some(())
}

fn long(values: &mut Values<'_>) -> Option<i64> {
    values.long()
}

fn boolean(values: &mut Values<'_>) -> Option<bool> {
    values.byte().map(|byte| byte != 0)
}

/// A CP group: a set of members that agree on the locks in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) seed: i64,
    pub(crate) id: i64,
}

impl Group {
    fn write(&self, request: Encoder) -> Encoder {
        let request = request.begin().begin_fixed();
        request.long(self.seed).long(self.id).text(&self.name).end()
    }

    fn read(values: &mut Values<'_>) -> Option<Self> {
        values.enter()?;
        values.enter_fixed()?;
        let (seed, id) = (values.long()?, values.long()?);
        let name = values.text()?;
        values.leave()?;
        Some(Self { name, seed, id })
    }
}

/// What a client says about itself when it connects.
pub(crate) struct Login<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    /// The name of the client, for operators.
    pub(crate) client: &'a str,
    /// A random identifier of the client.
    pub(crate) uuid: u128,
}

/// The answer to a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// 0: logged in; 1: wrong cluster, user or password; 2: another version of the serialization; 3: not allowed.
    pub(crate) status: u8,
    /// The version of the server; empty if the login failed.
    pub(crate) version: String,
}

/// The version of the serialization of objects, which these messages do not use.
const SERIALIZATION: u8 = 1;

/// The version whose messages these are.
const CLIENT_VERSION: &str = "5.4.0";

/// Type 0x000100. Fixed: identifier of the client, version of the serialization u8. Then: name of the cluster, user or
/// `NULL`, password or `NULL`, type of the client, version of the client, name of the client, labels as a list.
///
/// Reply, fixed: status u8, identifier of the member 17 bytes, version of the serialization u8, count of partitions i32, identifier of
/// the cluster 17 bytes, failover u8. Then: address of the member or `NULL`, version of the server.
pub(crate) fn authenticate(login: &Login<'_>) -> Call<Welcome> {
    let request = Encoder::new(0x00_0100)
        .uuid(login.uuid)
        .fixed(&[SERIALIZATION])
        .text(login.cluster)
        .text_or_null(login.user)
        .text_or_null(login.password)
        .text("RST")
        .text(CLIENT_VERSION)
        .text(login.client)
        .begin()
        .end();
    let read = |values: &mut Values<'_>| {
        let status = values.byte()?;
        values.skip()?;
        let version = values.text()?;
        Some(Welcome { status, version })
    };
    Call::new(0x00_0100, read, request)
}

/// Type 0x000B00, without values: shows that the connection is there.
pub(crate) fn ping() -> Call<()> {
    Call::new(0x00_0b00, nothing, Encoder::new(0x00_0b00))
}

/// Type 0x1E0100. Then: name of an object with `@` and the name of its group, or without for the group `default`. Makes the
/// group if it does not exist.
///
/// Reply: the group.
pub(crate) fn create_group(object: &str) -> Call<Group> {
    Call::new(0x1e_0100, Group::read, Encoder::new(0x1e_0100).text(object))
}

/// A session as the server made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewSession {
    pub(crate) id: i64,
    /// In ms: how long after its last heartbeat the server ends the session.
    pub(crate) ttl: i64,
}

/// Type 0x1F0100. Then: the group, a name that operators see.
///
/// Reply, fixed: id i64, ttl in ms i64, interval of heartbeats in ms i64.
pub(crate) fn create_session(group: &Group, name: &str) -> Call<NewSession> {
    let read = |values: &mut Values<'_>| {
        let (id, ttl) = (values.long()?, values.long()?);
        Some(NewSession { id, ttl })
    };
    let request = group.write(Encoder::new(0x1f_0100)).text(name);
    Call::new(0x1f_0100, read, request)
}

/// Type 0x1F0200. Fixed: id of the session i64. Then: the group. Ends what the session holds and what waits in it.
///
/// Reply, fixed: whether the session was there u8.
pub(crate) fn close_session(group: &Group, session: i64) -> Call<bool> {
    let request = group.write(Encoder::new(0x1f_0200).long(session));
    Call::new(0x1f_0200, boolean, request)
}

/// Type 0x1F0300. Fixed: id of the session i64. Then: the group. The session lasts for a ttl from now on.
pub(crate) fn heartbeat(group: &Group, session: i64) -> Call<()> {
    let request = group.write(Encoder::new(0x1f_0300).long(session));
    Call::new(0x1f_0300, nothing, request)
}

/// Who locks: a thread of a session. The server takes any number for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) session: i64,
    pub(crate) thread: i64,
}

/// What is locked.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) group: &'a Group,
    pub(crate) name: &'a str,
}

fn begin(kind: i32, endpoint: Endpoint, uid: u128) -> Encoder {
    let request = Encoder::new(kind);
    request
        .long(endpoint.session)
        .long(endpoint.thread)
        .uuid(uid)
}

fn end(request: Encoder, target: Target<'_>) -> Encoder {
    target.group.write(request).text(target.name)
}

/// Type 0x070100. Fixed: session i64, thread i64, identifier of the request. Then: the group, the name. The reply comes when
/// the endpoint has the lock; the same identifier again is the same request.
///
/// Reply, fixed: fence i64; 0: the endpoint has the lock as often as it may.
pub(crate) fn lock(target: Target<'_>, endpoint: Endpoint, uid: u128) -> Call<i64> {
    let request = end(begin(0x07_0100, endpoint, uid), target);
    Call::new(0x07_0100, long, request)
}

/// Type 0x070200. As [`lock`], with one more fixed value: for how many ms it may wait, i64. Here always 0.
///
/// Reply, fixed: fence i64; 0: another endpoint has the lock.
pub(crate) fn try_lock(target: Target<'_>, endpoint: Endpoint, uid: u128) -> Call<i64> {
    let request = end(begin(0x07_0200, endpoint, uid).long(0), target);
    Call::new(0x07_0200, long, request)
}

/// Type 0x070300. As [`lock`]. The same identifier again is the same request, also after the lock is free.
///
/// Reply, fixed: whether the endpoint still has the lock u8.
pub(crate) fn unlock(target: Target<'_>, endpoint: Endpoint, uid: u128) -> Call<bool> {
    let request = end(begin(0x07_0300, endpoint, uid), target);
    Call::new(0x07_0300, boolean, request)
}

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// 0: the lock is free.
    pub(crate) fence: i64,
    /// How often the endpoint has entered the lock.
    pub(crate) count: i32,
    pub(crate) endpoint: Endpoint,
}

impl Ownership {
    /// Whether an endpoint has the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.count > 0
    }
}

/// Type 0x070400. Then: the group, the name.
///
/// Reply, fixed: fence i64, count i32, session i64, thread i64. Of a free lock: 0, 0, -1, -1.
pub(crate) fn ownership(target: Target<'_>) -> Call<Ownership> {
    let read = |values: &mut Values<'_>| {
        let (fence, count) = (values.long()?, values.int()?);
        let (session, thread) = (values.long()?, values.long()?);
        Some(Ownership {
            fence,
            count,
            endpoint: Endpoint { session, thread },
        })
    };
    Call::new(0x07_0400, read, end(Encoder::new(0x07_0400), target))
}

/// Reads any bytes as the replies to all requests. For tests with bytes of any kind.
#[cfg(any(test, feature = "_fuzzing"))]
pub(crate) fn read_all(message: &Message) {
    let group = Group {
        name: String::new(),
        seed: 0,
        id: 0,
    };
    let login = Login {
        cluster: "",
        user: None,
        password: None,
        client: "",
        uuid: 0,
    };
    let target = Target {
        group: &group,
        name: "",
    };
    let endpoint = Endpoint {
        session: 0,
        thread: 0,
    };
    let _ = authenticate(&login).read(message);
    let _ = ping().read(message);
    let _ = create_group("").read(message);
    let _ = create_session(&group, "").read(message);
    let _ = close_session(&group, 0).read(message);
    let _ = lock(target, endpoint, 0).read(message);
    let _ = ownership(target).read(message);
    // All readers, whatever the type of the message is.
    let mut values = message.values();
    let _ = Group::read(&mut values);
    let _ = read_error(&mut message.values());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Decoder;

    fn decode(bytes: &[u8]) -> Message {
        let mut decoder = Decoder::default();
        decoder.add(bytes);
        decoder.next().unwrap().unwrap()
    }

    /// A reply of that type: its values begin three bytes before those of a request.
    fn reply(kind: i32, fixed: &[u8], rest: impl Fn(Encoder) -> Encoder) -> Message {
        let bytes = rest(Encoder::new(kind).fixed(fixed)).finish(1);
        let (length, content) = (
            i32::from_le_bytes(bytes[..4].try_into().unwrap()),
            &bytes[6..],
        );
        let length = length - 3;
        let header = [&length.to_le_bytes()[..], &bytes[4..6]].concat();
        decode(&[&header, &content[..13], &content[16..]].concat())
    }

    fn group() -> Group {
        Group {
            name: "default".into(),
            seed: 3,
            id: 4,
        }
    }

    #[test]
    fn a_lock_is_asked_for_with_the_published_bytes() {
        let (group, endpoint) = (
            group(),
            Endpoint {
                session: 1,
                thread: 2,
            },
        );
        let target = Target {
            group: &group,
            name: "job",
        };
        let bytes = lock(target, endpoint, 5).request.finish(6);
        assert_eq!(bytes[..10], [55, 0, 0, 0, 0, 0xc0, 0, 1, 7, 0]);
        let [session, thread] = [&bytes[22..30], &bytes[30..38]];
        assert_eq!(
            (session, thread),
            (&1_i64.to_le_bytes()[..], &2_i64.to_le_bytes()[..])
        );
        assert_eq!(
            bytes[38..55],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]
        );
        let rest = [
            &[6, 0, 0, 0, 0, 0x10, 22, 0, 0, 0, 0, 0][..],
            &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
            &[13, 0, 0, 0, 0, 0],
            b"default",
            &[6, 0, 0, 0, 0, 8],
            &[9, 0, 0, 0, 0, 0x20],
            b"job",
        ]
        .concat();
        assert_eq!(bytes[55..], rest);
        let waits = try_lock(target, endpoint, 5).request.finish(6);
        assert_eq!((waits[0], &waits[55..63]), (63, &[0; 8][..]));
    }

    #[test]
    fn replies_are_read_and_what_is_behind_them_is_not() {
        let session = [7_i64, 5_000, 1_000].map(i64::to_le_bytes).concat();
        let session = reply(0x1f_0101, &session, |it| it.text("newer"));
        let expected = NewSession { id: 7, ttl: 5_000 };
        assert_eq!(create_session(&group(), "").read(&session), Ok(expected));
        let made = reply(0x1e_0101, &[], |it| group().write(it));
        assert_eq!(create_group("x").read(&made), Ok(group()));
        let free = [&[0; 12][..], &[0xff; 16]].concat();
        let free = reply(0x07_0401, &free, |it| it);
        let target = Target {
            group: &group(),
            name: "",
        };
        let found = ownership(target).read(&free).unwrap();
        assert!(!found.is_held() && found.endpoint.session == -1);
        // The answer to another request.
        assert_eq!(ping().read(&free), Err(NoReply::Malformed));
        let short = reply(0x07_0401, &[0; 27], |it| it);
        assert_eq!(ownership(target).read(&short), Err(NoReply::Malformed));
    }

    #[test]
    fn an_error_says_code_class_and_message() {
        let stack = |it: Encoder| it.begin().begin().text("at").end().end();
        let one = |it: Encoder, code: i32, message| {
            let it = it.begin().begin_fixed().fixed(&code.to_le_bytes());
            stack(it.text("a.B").text_or_null(message)).end()
        };
        let error = reply(0, &[], |it| {
            one(one(it.begin(), 85, None), 1, Some("cause")).end()
        });
        let expected = ServerError {
            code: 85,
            class: "a.B".into(),
            message: String::new(),
        };
        assert_eq!(ping().read(&error), Err(NoReply::Refused(expected)));
        let broken = reply(0, &[], |it| it.begin().end());
        assert_eq!(ping().read(&broken), Err(NoReply::Malformed));
    }

    #[test]
    fn a_login_is_read_without_the_address_of_the_member() {
        let login = Login {
            cluster: "dev",
            user: Some("me"),
            password: None,
            client: "c",
            uuid: 1,
        };
        let fixed = [0; 41];
        for has_address in [false, true] {
            let welcome = reply(0x00_0101, &fixed, |it| {
                let it = match has_address {
                    true => it.begin().begin_fixed().text("127.0.0.1").end(),
                    false => it.text_or_null(None),
                };
                it.text("5.4.0").begin().end()
            });
            let read = authenticate(&login).read(&welcome).unwrap();
            assert_eq!((read.status, read.version.as_str()), (0, "5.4.0"));
        }
    }

    /// The seeds of `fuzz/`, cut at each length and with each byte changed.
    #[test]
    fn what_fuzzing_begins_with_is_read_or_refused() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/hazelcast");
        let seeds: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
        assert!(seeds.len() > 2);
        for seed in seeds {
            let seed = std::fs::read(seed.unwrap().path()).unwrap();
            crate::fuzz(&seed);
            for at in 0..seed.len() {
                crate::fuzz(&seed[..at]);
                for bit in 0..8 {
                    let mut changed = seed.clone();
                    changed[at] ^= 1 << bit;
                    crate::fuzz(&changed);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            crate::fuzz(&bytes);
        }

        /// Frames that are well formed, with any flags and any content.
        #[test]
        fn any_frames_are_read_or_refused(
            frames in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)), 0..12),
            kind in 0..3,
        ) {
            let kind = [0, 0x07_0401, 0x1e_0101][usize::try_from(kind).unwrap()];
            let mut bytes = Encoder::new(kind).finish(1);
            bytes[5] &= !0x20;
            for (flags, content) in frames {
                let length = i32::try_from(content.len() + 6).unwrap();
                bytes.extend(length.to_le_bytes());
                bytes.extend(flags.to_le_bytes());
                bytes.extend(content);
            }
            crate::fuzz(&bytes);
        }
    }
}

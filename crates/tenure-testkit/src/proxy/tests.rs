//! The behaviour of a connection for every protocol, tested with a protocol of lines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::wait::{TEST_TIMEOUT, until};

use super::connection::{Protocol, Reply, ReplyId, Request, serve};
use super::control::{Direction, Fault, Proxy};

/// Requests and replies are lines. A request begins with its kind; `hello` sets up a connection.
struct Lines;

fn line(buffer: &[u8]) -> Option<usize> {
    Some(1 + buffer.iter().position(|byte| *byte == b'\n')?)
}

impl Protocol for Lines {
    fn next_request(&mut self, buffer: &[u8]) -> Option<(usize, Request)> {
        let length = line(buffer)?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        let kind = text.split_whitespace().next().map(str::to_owned);
        let kind = kind.filter(|kind| kind != "hello");
        let request = Request {
            name: kind.clone(),
            is_counted: kind.is_some(),
            kind,
            reply: ReplyId::InOrder,
            own_answer: None,
        };
        Some((length, request))
    }

    fn next_reply(&mut self, buffer: &[u8]) -> Option<(usize, Reply)> {
        let length = line(buffer)?;
        let reply = Reply {
            id: ReplyId::InOrder,
            will_be_repeated: buffer.starts_with(b"again"),
        };
        Some((length, reply))
    }

    fn error(&self, _: &[u8], text: &str) -> Vec<u8> {
        format!("error {text}\n").into_bytes()
    }
}

/// Answers each line with a word and the line.
struct Server {
    port: u16,
    received: mpsc::Receiver<String>,
}

impl Server {
    fn start() -> Self {
        Self::start_with("done")
    }

    fn start_with(word: &'static str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, received) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(&stream).lines();
                    while let Some(Ok(line)) = lines.next() {
                        let answer = format!("{word} {line}\n");
                        // An error means that the test is over.
                        let _ = sender.send(line);
                        let _ = (&stream).write_all(answer.as_bytes());
                    }
                });
            }
        });
        Self { port, received }
    }

    fn received(&self) -> Vec<String> {
        self.received.try_iter().collect()
    }
}

struct Client(BufReader<std::net::TcpStream>);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = std::net::TcpStream::connect(proxy.address()).unwrap();
        let limit = Some(TEST_TIMEOUT);
        stream.set_read_timeout(limit).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        let stream = self.0.get_mut();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The next line; empty when the connection is cut.
    fn line(&mut self) -> String {
        let mut line = String::new();
        // A connection that is cut ends with or without a reset.
        let _ = self.0.read_line(&mut line);
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    fn has_nothing(&mut self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).unwrap();
        let is_empty = self.0.read(&mut [0]).is_err();
        self.0.get_ref().set_nonblocking(false).unwrap();
        is_empty
    }
}

fn start() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.port, |control, client, server| {
        serve(control, client, server, Lines)
    });
    let client = Client::connect(&proxy);
    (server, proxy, client)
}

const SHORT: Duration = Duration::from_millis(30);

#[test]
fn requests_are_counted_and_recorded_without_those_that_set_up_a_connection() {
    let (_server, proxy, mut client) = start();
    assert_eq!(client.ask("hello"), "done hello");
    assert_eq!(client.ask("acquire a"), "done acquire a");
    client.send("renew a\nrelease a");
    assert_eq!(client.line(), "done renew a");
    assert_eq!(client.line(), "done release a");
    assert_eq!(proxy.take_seen(), ["acquire", "renew", "release"]);
    assert!(proxy.take_seen().is_empty());
    assert_eq!((proxy.requests(), proxy.connections()), (3, 1));
}

#[test]
fn each_fault_happens_to_the_next_request_of_its_kind_and_to_no_other() {
    let (server, proxy, mut client) = start();
    for (fault, answer, received) in [
        (Fault::Answer("no"), "error no", ""),
        (Fault::Garbage(b"noise\n"), "noise", ""),
        (Fault::CutBefore, "", ""),
        (Fault::CutAfter, "", "acquire"),
        (Fault::Late(SHORT), "done acquire", "acquire"),
        (Fault::Trickle(SHORT / 10), "done acquire", "acquire"),
    ] {
        proxy.plan("acquire", fault.clone());
        assert_eq!(client.ask("renew"), "done renew");
        assert_eq!(proxy.pending(), 1);
        let start = Instant::now();
        assert_eq!(client.ask("acquire"), answer, "{fault:?}");
        let is_slow = matches!(fault, Fault::Late(_) | Fault::Trickle(_));
        assert!(!is_slow || start.elapsed() >= SHORT, "{fault:?}");
        assert!(proxy.is_done(), "{fault:?}");
        assert_eq!(
            server.received().join(" "),
            format!("renew {received}").trim_end()
        );
        if answer.is_empty() {
            client = Client::connect(&proxy);
        }
        assert_eq!(client.ask("acquire"), "done acquire");
        assert_eq!(server.received(), ["acquire"]);
    }
}

#[test]
fn a_reply_that_waits_holds_back_those_that_follow() {
    let (_server, proxy, mut client) = start();
    proxy.plan("acquire", Fault::NoReply);
    client.send("acquire\nrenew");
    until("the reply is there", || proxy.is_done());
    assert!(client.has_nothing());
    proxy.resume();
    assert_eq!(client.line(), "done acquire");
    assert_eq!(client.line(), "done renew");
}

#[test]
fn an_answer_of_the_proxy_comes_in_the_order_of_the_requests() {
    let (_server, proxy, mut client) = start();
    proxy.plan("release", Fault::Answer("no"));
    client.send("acquire\nrelease\nrenew");
    assert_eq!(client.line(), "done acquire");
    assert_eq!(client.line(), "error no");
    assert_eq!(client.line(), "done renew");
}

#[test]
fn a_direction_can_be_held_and_delayed_and_a_kind_blocked() {
    let (server, proxy, mut client) = start();
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
        client.send("acquire");
        if direction == Direction::Down {
            assert_eq!(
                server.received.recv_timeout(TEST_TIMEOUT).unwrap(),
                "acquire"
            );
        }
        std::thread::sleep(SHORT);
        assert!(client.has_nothing());
        assert!(server.received().is_empty());
        proxy.hold(direction, false);
        assert_eq!(client.line(), "done acquire");
        server.received();

        proxy.delay(direction, SHORT);
        let start = Instant::now();
        assert_eq!(client.ask("acquire"), "done acquire");
        assert!(start.elapsed() >= SHORT);
        proxy.delay(direction, Duration::ZERO);
        server.received();
    }
    proxy.block("renew");
    assert_eq!(client.ask("acquire"), "done acquire");
    client.send("renew");
    std::thread::sleep(SHORT);
    assert_eq!(server.received(), ["acquire"]);
    proxy.resume();
    assert_eq!(client.line(), "done renew");
}

#[test]
fn a_request_that_will_be_repeated_keeps_its_fault() {
    let (server, proxy, _) = start();
    let again = Server::start_with("again");
    proxy.redirect(again.port);
    let mut client = Client::connect(&proxy);
    proxy.plan("acquire", Fault::CutAfter);
    assert_eq!(client.ask("acquire"), "again acquire");
    assert_eq!(proxy.pending(), 1);
    proxy.redirect(server.port);
    proxy.cut();
    assert_eq!(client.line(), "");
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("acquire"), "");
    assert!(proxy.is_done());
}

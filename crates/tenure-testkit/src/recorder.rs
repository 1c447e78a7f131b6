//! Records what clients send to a server, and may change the first bytes of the server.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Changes the first bytes that a server sends on a connection.
pub type Tamper = fn(&mut Vec<u8>);

/// A recorder. Its thread runs until the test program ends, because the recorder has nothing but a port.
pub struct Recorder {
    port: u16,
    /// What clients sent, by connection.
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// A recorder in front of that port of this machine.
    pub fn in_front_of(target: u16, tamper: Tamper) -> Self {
        Self::start(move |client, note| {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                return;
            };
            let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let mut is_first = true;
                forward(&mut from, &mut back, |bytes| {
                    if std::mem::take(&mut is_first) {
                        tamper(bytes);
                    }
                });
            });
            let (mut up, mut to) = (client, server);
            forward(&mut up, &mut to, |bytes| note(bytes));
        })
    }

    /// A recorder without a server. It answers the first bytes of a client with `answer`, and sends nothing else.
    pub fn in_place_of_server(answer: &'static [u8]) -> Self {
        Self::start(move |mut client, note| {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = client.read(&mut bytes) {
                note(&bytes[..count]);
                if client.write_all(answer).is_err() {
                    return;
                }
                let _ = client.shutdown(Shutdown::Write);
            }
        })
    }

    fn start(serve: impl Fn(TcpStream, &dyn Fn(&[u8])) + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
        let theirs = received.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (received, serve) = (theirs.clone(), serve.clone());
                let place = {
                    let mut all = received.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                thread::spawn(move || {
                    serve(client, &|bytes| {
                        received.lock().unwrap()[place].extend_from_slice(bytes);
                    });
                });
            }
        });
        Self { port, received }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What clients have sent so far, by connection.
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.received.lock().unwrap().clone()
    }
}

/// Forwards until one side closes its connection, and then closes both.
fn forward(from: &mut TcpStream, to: &mut TcpStream, mut look: impl FnMut(&mut Vec<u8>)) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        look(&mut bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

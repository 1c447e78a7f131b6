//! The resource that the lock protects: a register on a loopback port, to which every worker has access.
//!
//! The register has two sides. The unfenced side accepts every access. The fenced side refuses a write whose token is less
//! than the greatest one so far, and a read whose token is less than that of the last write. The checker, which knows all
//! claims, decides which accesses were late.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tenure_core::rt::lock;

use crate::clock::now;
use crate::event::{Event, Log};

#[derive(Default)]
struct Values {
    /// The greatest tokens on the fenced side, for each name.
    fences: HashMap<String, Fence>,
    /// The acquisition of the last access and its time, for each name.
    last: HashMap<String, (u64, u64)>,
}

/// The greatest tokens of one name. Readers hold at the same time, so one of them may come later with a smaller token.
#[derive(Default)]
struct Fence {
    written: u64,
    accessed: u64,
}

impl Fence {
    /// Records the token of an access, and returns whether the access is one of the newest holder, or of a reader that holds
    /// at the same time.
    fn admit(&mut self, token: u64, is_write: bool) -> bool {
        let least = match is_write {
            true => self.accessed,
            false => self.written,
        };
        if token < least {
            return false;
        }
        self.accessed = token.max(self.accessed);
        if is_write {
            self.written = token;
        }
        true
    }
}

/// The register. Dropping it closes its port.
pub struct Register {
    address: SocketAddr,
    values: Arc<Mutex<Values>>,
    closed: Arc<AtomicBool>,
}

impl Register {
    /// Starts the register; each access becomes an event of `log`.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn open(log: Log) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let register = Self {
            address: listener.local_addr()?,
            values: Arc::default(),
            closed: Arc::default(),
        };
        let (values, closed) = (register.values.clone(), register.closed.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                // Without a log a connection is not served; its worker finds it closed.
                if let Ok(log) = log.try_clone() {
                    let values = values.clone();
                    std::thread::spawn(move || serve(&stream, &values, log));
                }
            }
        });
        Ok(register)
    }

    /// The address to which workers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The acquisition that accessed `name` last, unless that is longer ago than `within` nanoseconds.
    pub fn holder(&self, name: &str, within: u64) -> Option<u64> {
        let (acquisition, at) = *lock(&self.values).last.get(name)?;
        (now().saturating_sub(at) < within).then_some(acquisition)
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections, so that it ends.
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads lines `NAME TOKEN ACQUISITION write|read` and answers each with `yes` or `no`: whether the fenced side accepted it.
fn serve(stream: &TcpStream, values: &Mutex<Values>, mut log: Log) {
    // Without this option small messages wait for each other's acknowledgement, 40 ms for each write.
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (Some(token), Some(acquisition)) = (number(), number()) else {
            return;
        };
        let is_write = words.next() == Some("write");
        let accepted = {
            let mut values = lock(values);
            let at = now();
            values.last.insert(name.clone(), (acquisition, at));
            let fence = values.fences.entry(name).or_default();
            let accepted = fence.admit(token, is_write);
            // Under the lock, so that the log has the accesses in the order in which they reached the register.
            let wrote = Event::Wrote {
                at,
                acquisition,
                accepted,
            };
            log.append(&wrote).map(|()| accepted)
        };
        let answer: &[u8] = match accepted {
            Ok(true) => b"yes\n",
            Ok(false) => b"no\n",
            Err(_) => return,
        };
        if (&mut &*stream).write_all(answer).is_err() {
            return;
        }
    }
}

//! A small lock server inside the test, which can forget everything and answer late.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_torture::clock::now;
use tenure_torture::nemesis::Server;

#[derive(Default)]
struct Data {
    /// Owner and end of each hold.
    holds: HashMap<String, (String, u64)>,
    counter: u64,
    down: bool,
    grants: u64,
}

/// The server; it lives as long as the test program.
pub(crate) struct Store {
    pub(crate) address: SocketAddr,
    data: Arc<Mutex<Data>>,
}

impl Store {
    /// `late`: how much later every second reply is sent than the others.
    pub(crate) fn start(late: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = Self {
            address: listener.local_addr().unwrap(),
            data: Arc::default(),
        };
        let data = store.data.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let data = data.clone();
                std::thread::spawn(move || serve(&stream, &data, late));
            }
        });
        store
    }
}

impl Server for Store {
    fn stop(&self) {}

    fn go_on(&self) {}

    fn kill(&self) {
        *self.data.lock().unwrap() = Data {
            down: true,
            ..Data::default()
        };
    }

    fn start(&self) {
        self.data.lock().unwrap().down = false;
    }
}

fn serve(stream: &TcpStream, data: &Mutex<Data>, late: Duration) {
    stream.set_nodelay(true).unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let (answer, is_late) = {
            let mut data = data.lock().unwrap();
            if data.down {
                return;
            }
            let answer = act(&mut data, &line);
            (answer, data.grants % 2 == 1)
        };
        if is_late && answer != "no\n" {
            std::thread::sleep(late);
        }
        if (&mut &*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// `take NAME OWNER MS`, `renew NAME OWNER MS`, `free NAME OWNER`; `*` is any owner.
fn act(data: &mut Data, line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let (verb, name, owner) = (words[0], words[1], words[2]);
    let until = |ms: &str| now() + ms.parse::<u64>().unwrap() * 1_000_000;
    let now = now();
    data.holds.retain(|_, hold| hold.1 > now);
    let is_his = |hold: &(String, u64)| owner == "*" || hold.0 == owner;
    let hold = data.holds.get(name);
    match verb {
        "take" if hold.is_none() => {
            data.holds
                .insert(name.into(), (owner.into(), until(words[3])));
            data.counter += 1;
            data.grants += 1;
            // A plain counter, and one that not even the loss of all data sets back.
            return format!("{} {now}\n", data.counter);
        }
        "renew" if hold.is_some_and(is_his) => {
            let owner = hold.unwrap().0.clone();
            data.holds.insert(name.into(), (owner, until(words[3])));
        }
        // Whoever holds it, or nobody any more.
        "renew" if owner == "*" => {
            data.holds
                .insert(name.into(), (owner.into(), until(words[3])));
        }
        "free" if hold.is_some_and(is_his) => {
            data.holds.remove(name);
        }
        _ => return "no\n".into(),
    }
    "yes\n".into()
}

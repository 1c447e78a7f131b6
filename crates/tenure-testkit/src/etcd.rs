//! etcd, one member or several. The test itself uses the JSON gateway.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::network::{Host, Network};
use super::process::{Port, Process, new_directory};
use super::redis::{Certificates, PASSWORD, USER};
use super::skip;
use super::wait::until;

/// The environment variable with the folder of the program, for another version than the one on the `PATH`.
const FOLDER: &str = "TENURE_ETCD_BIN";

/// Returns `true`, which ends the test, where the server is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    std::env::var_os(FOLDER).is_none() && skip::skip_unless_installed(&["etcd"])
}

/// A cluster. Dropping it kills its members and removes their directories.
pub struct Etcd {
    pub members: Vec<Member>,
    /// The test itself logs in as root.
    is_secured: bool,
    token: Mutex<Option<String>>,
}

/// One process, which can be killed and started again on its ports and directory.
pub struct Member {
    name: String,
    host: Host,
    client: Port,
    tls: Port,
    peer: Port,
    dir: PathBuf,
    command: Vec<String>,
    process: Mutex<Option<Process>>,
}

/// A key of the store.
#[derive(Clone, Debug)]
pub struct Key {
    pub key: String,
    pub value: String,
    pub created: u64,
    pub modified: u64,
    pub lease: i64,
}

impl Etcd {
    /// A cluster of `count` members, with these flags added.
    pub fn start(count: usize, flags: &[&str]) -> Self {
        Self::start_after(&[], count, flags)
    }

    /// `before`: words before the program, which give it a clock or a disk.
    pub fn start_after(before: &[String], count: usize, flags: &[&str]) -> Self {
        Self::launch(&vec![Host::here(); count], before, None, flags)
    }

    /// A member on each host of that network. This machine reaches them, too.
    pub fn start_on(network: &Network) -> Self {
        Self::launch(&network.hosts, &[], None, &[])
    }

    /// One member at which [`USER`] logs in with [`PASSWORD`]. Clients without a user are refused.
    pub fn start_secured(flags: &[&str]) -> Self {
        let mut etcd = Self::launch(&[Host::here()], &[], None, flags);
        etcd.secure();
        etcd
    }

    /// TLS on [`tls_address`](Member::tls_address), with that certificate. Clients need a certificate and a user.
    pub fn start_tls(certificates: &Certificates, name: &str) -> Self {
        let mut etcd = Self::launch(&[Host::here()], &[], Some((certificates, name)), &[]);
        etcd.secure();
        etcd
    }

    fn launch(
        hosts: &[Host],
        before: &[String],
        tls: Option<(&Certificates, &str)>,
        flags: &[&str],
    ) -> Self {
        let prepare = |(at, host): (usize, &Host)| Member::prepare(format!("m{at}"), host);
        let mut members: Vec<_> = hosts.iter().enumerate().map(prepare).collect();
        let peers = members.iter();
        let peers = peers.map(|member| format!("{}={}", member.name, member.url(&member.peer)));
        let cluster = peers.collect::<Vec<_>>().join(",");
        for member in &mut members {
            let mut command = member.host.command();
            command.extend(before.iter().cloned());
            command.extend(member.command(&cluster, tls.is_some()));
            if let Some((certificates, name)) = tls {
                command.extend(tls_options(certificates, name));
            }
            command.extend(flags.iter().map(ToString::to_string));
            member.command = command;
        }
        let etcd = Self {
            members,
            is_secured: false,
            token: Mutex::new(None),
        };
        etcd.members.iter().for_each(Member::spawn);
        etcd.until_ready();
        etcd
    }

    /// Waits until every member knows a leader.
    pub fn until_ready(&self) {
        for member in &self.members {
            until("the member is ready", || {
                member.assert_lives();
                self.leader_of(member) != 0
            });
        }
    }

    fn secure(&mut self) {
        let all = json!({ "permType": 2, "key": base64(b"\0"), "range_end": base64(b"\0") });
        for (path, body) in [
            ("user/add", json!({ "name": "root", "password": PASSWORD })),
            ("role/add", json!({ "name": "root" })),
            ("user/grant", json!({ "user": "root", "role": "root" })),
            ("user/add", json!({ "name": USER, "password": PASSWORD })),
            ("role/add", json!({ "name": "locks" })),
            ("role/grant", json!({ "name": "locks", "perm": all })),
            ("user/grant", json!({ "user": USER, "role": "locks" })),
            ("enable", json!({})),
        ] {
            self.order(&format!("auth/{path}"), &body);
        }
        self.is_secured = true;
    }

    /// `etcd://` and the addresses of all members.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.members.iter().map(Member::address).collect();
        self.url_by(&addresses)
    }

    /// The URL with other addresses, for example of proxies.
    pub fn url_by(&self, addresses: &[String]) -> String {
        format!("etcd://{}{}", self.login(), addresses.join(","))
    }

    pub fn tls_url(&self) -> String {
        let addresses: Vec<_> = self.members.iter().map(Member::tls_address).collect();
        format!("etcds://{}{}", self.login(), addresses.join(","))
    }

    fn login(&self) -> String {
        match self.is_secured {
            true => format!("{USER}:{PASSWORD}@"),
            false => String::new(),
        }
    }

    /// Sends a request to the gateway of the first member that answers.
    ///
    /// # Panics
    /// When the answer is an error, or no member answers.
    #[track_caller]
    pub fn order(&self, path: &str, body: &Value) -> Value {
        let mut said = Vec::new();
        for attempt in 0..3 {
            let token = self.is_secured.then(|| self.token(attempt > 0));
            for member in &self.members {
                match member.post(path, body, token.as_deref()) {
                    Some(answer) if answer.get("error").is_none() => return answer,
                    Some(answer) => said.push(answer.to_string()),
                    None => said.push("no answer".into()),
                }
            }
        }
        panic!("{path}: {said:?}");
    }

    /// The answer of the first member to another user, who logs in with [`PASSWORD`].
    #[track_caller]
    pub fn order_as(&self, user: &str, path: &str, body: &Value) -> Value {
        let login = json!({ "name": user, "password": PASSWORD });
        let ask = |path: &str, body: &Value, token: Option<&str>| {
            let answer = self.members[0].post(path, body, token);
            answer.unwrap_or_else(|| panic!("{path}: no answer"))
        };
        let token = ask("auth/authenticate", &login, None);
        ask(path, body, token["token"].as_str())
    }

    /// The leader that this member knows; 0 if it knows none or does not answer.
    pub fn leader_of(&self, member: &Member) -> u64 {
        let status = member.status(self.login_token().as_deref());
        if status.is_none() {
            // A server that was restarted does not know the tokens that it issued before.
            *self.token.lock().unwrap() = None;
        }
        status.map_or(0, |status| number(&status["leader"]))
    }

    /// `None` if a login is not needed, or not possible at the moment.
    fn login_token(&self) -> Option<String> {
        let mut token = self.token.lock().unwrap();
        if self.is_secured && token.is_none() {
            *token = self.log_in();
        }
        token.clone()
    }

    fn log_in(&self) -> Option<String> {
        let login = json!({ "name": "root", "password": PASSWORD });
        let answer = self.members[0].post("auth/authenticate", &login, None)?;
        Some(answer["token"].as_str()?.to_owned())
    }

    fn token(&self, renew: bool) -> String {
        let mut token = self.token.lock().unwrap();
        if renew {
            *token = None;
        }
        token.get_or_insert_with(|| self.log_in().unwrap()).clone()
    }

    /// All keys with this prefix, in the order in which they were created.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<Key> {
        let mut range = range(prefix);
        range["sort_order"] = "ASCEND".into();
        range["sort_target"] = "CREATE".into();
        let answer = self.order("kv/range", &range);
        let kvs = answer["kvs"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| {
            let bytes = unbase64(value.as_str().unwrap_or_default());
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let key = |kv: &Value| Key {
            key: text(&kv["key"]),
            value: text(&kv["value"]),
            created: number(&kv["create_revision"]),
            modified: number(&kv["mod_revision"]),
            lease: i64::try_from(number(&kv["lease"])).unwrap(),
        };
        kvs.iter().map(key).collect()
    }

    /// A put by the first member; the error is its refusal.
    pub fn try_put(&self, key: &str, value: &str) -> Result<(), String> {
        let (key, value) = (base64(key.as_bytes()), base64(value.as_bytes()));
        let put = json!({ "key": key, "value": value });
        match self.members[0].post("kv/put", &put, None) {
            Some(answer) if answer.get("error").is_none() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Deletes all keys with this prefix.
    #[track_caller]
    pub fn delete(&self, prefix: &str) {
        self.order("kv/deleterange", &range(prefix));
    }

    /// All leases, by their ids.
    #[track_caller]
    pub fn leases(&self) -> Vec<i64> {
        let answer = self.order("lease/leases", &json!({}));
        let leases = answer["leases"].as_array().cloned().unwrap_or_default();
        let id = |lease: &Value| i64::try_from(number(&lease["ID"])).unwrap();
        leases.iter().map(id).collect()
    }

    #[track_caller]
    pub fn revoke(&self, lease: i64) {
        self.order("lease/revoke", &json!({ "ID": lease.to_string() }));
    }

    /// Compacts all revisions but the last.
    #[track_caller]
    pub fn compact(&self) {
        let answer = self.order("kv/range", &range("compact?"));
        let revision = &answer["header"]["revision"];
        self.order(
            "kv/compaction",
            &json!({ "revision": revision, "physical": true }),
        );
    }

    /// The index of the leader.
    pub fn leader(&self) -> usize {
        let mut found = None;
        until("there is a leader", || {
            let mut members = self.members.iter();
            found = members.position(|member| {
                let status = member.status(self.login_token().as_deref());
                let leader = status.as_ref().map_or(0, |it| number(&it["leader"]));
                leader != 0 && leader == status.map_or(0, |it| number(&it["header"]["member_id"]))
            });
            found.is_some()
        });
        found.unwrap()
    }

    /// The number of watches that the members serve.
    pub fn watches(&self) -> u64 {
        let count = |member: &Member| member.metric("etcd_debugging_mvcc_watcher_total");
        self.members.iter().map(count).sum()
    }
}

impl Member {
    fn prepare(name: String, host: &Host) -> Self {
        Self {
            name,
            host: host.clone(),
            client: Port::reserve(),
            tls: Port::reserve(),
            peer: Port::reserve(),
            dir: new_directory("etcd"),
            command: Vec::new(),
            process: Mutex::new(None),
        }
    }

    fn url(&self, port: &Port) -> String {
        format!("http://{}:{}", self.host.address(), port.number())
    }

    /// The program and its options. `cluster`: `name=url` of each member.
    fn command(&self, cluster: &str, has_tls: bool) -> Vec<String> {
        let binary = std::env::var(FOLDER).map_or("etcd".into(), |folder| format!("{folder}/etcd"));
        let (client, peer) = (self.url(&self.client), self.url(&self.peer));
        let listen = match has_tls {
            true => format!("{client},https://{}", self.tls_address()),
            false => client.clone(),
        };
        let options = [
            ("name", self.name.as_str()),
            ("data-dir", &self.dir.join("data").display().to_string()),
            ("initial-cluster", cluster),
            ("initial-cluster-state", "new"),
            ("listen-client-urls", &listen),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("heartbeat-interval", "50"),
            ("election-timeout", "500"),
            // The default cost makes each login slow, which is right for a server in production and not for tests.
            ("bcrypt-cost", "4"),
            ("logger", "zap"),
            ("log-level", "error"),
        ];
        let options = options.map(|(name, value)| format!("--{name}={value}"));
        let no_sync = "--unsafe-no-fsync".to_owned();
        [binary, no_sync].into_iter().chain(options).collect()
    }

    pub fn port(&self) -> u16 {
        self.client.number()
    }

    pub fn tls_port(&self) -> u16 {
        self.tls.number()
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.host.address(), self.port())
    }

    pub fn tls_address(&self) -> String {
        format!("{}:{}", self.host.address(), self.tls_port())
    }

    fn spawn(&self) {
        let mut slot = self.process.lock().unwrap();
        assert!(slot.is_none(), "it runs");
        *slot = Some(Process::start(&self.dir, &self.command));
    }

    fn assert_lives(&self) {
        let slot = self.process.lock().unwrap();
        if slot.as_ref().is_some_and(Process::has_ended) {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
            panic!("etcd ended:\n{log}");
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the member again after [`kill`](Member::kill).
    pub fn start(&self) {
        self.spawn();
    }

    /// SIGKILL.
    pub fn kill(&self) {
        let process = self.process.lock().unwrap().take();
        process.expect("it runs").kill();
    }

    /// SIGSTOP: the member answers no client, and the kernel still accepts what clients send.
    pub fn stop(&self) {
        self.with_process(Process::stop);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.with_process(Process::resume);
    }

    fn with_process(&self, act: impl FnOnce(&Process)) {
        let slot = self.process.lock().unwrap();
        act(slot.as_ref().expect("it runs"));
    }

    /// The status of the member, also without a leader. Newer versions with users need a token for that.
    fn status(&self, token: Option<&str>) -> Option<Value> {
        let answer = self.post("maintenance/status", &json!({}), token)?;
        answer.get("error").is_none().then_some(answer)
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.http("GET /metrics", "", None).unwrap_or_default();
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    /// `None` if the member does not answer.
    fn post(&self, path: &str, body: &Value, token: Option<&str>) -> Option<Value> {
        let answer = self.http(&format!("POST /v3/{path}"), &body.to_string(), token)?;
        serde_json::from_str(&answer).ok()
    }

    fn http(&self, what: &str, body: &str, token: Option<&str>) -> Option<String> {
        let mut stream = TcpStream::connect((self.host.address(), self.port())).ok()?;
        let limit = Some(Duration::from_secs(2));
        stream.set_read_timeout(limit).ok()?;
        let token = token.map_or(String::new(), |it| format!("Authorization: {it}\r\n"));
        let length = body.len();
        let request = format!("{what} HTTP/1.0\r\n{token}Content-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.split_once("\r\n\r\n")?.1.to_owned())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}

fn tls_options(certificates: &Certificates, name: &str) -> Vec<String> {
    let file = |name: &str| certificates.file(name).display().to_string();
    vec![
        format!("--cert-file={}", file(&format!("{name}.crt"))),
        format!("--key-file={}", file(&format!("{name}.key"))),
        format!("--trusted-ca-file={}", file("ca.crt")),
        "--client-cert-auth".into(),
    ]
}

/// The gateway writes 64-bit numbers as text, and omits zeros.
fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or("0");
    text.parse().unwrap()
}

fn range(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // No test has a prefix that ends with the byte 255.
        Some(last) => *last += 1,
        None => return json!({ "key": base64(b"\0"), "range_end": base64(b"\0") }),
    }
    json!({ "key": base64(prefix.as_bytes()), "range_end": base64(&end) })
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() { digit.into() } else { '=' });
        }
    }
    text
}

pub fn unbase64(text: &str) -> Vec<u8> {
    let digit = |c: u8| DIGITS.iter().position(|digit| *digit == c);
    let digits: Vec<_> = text.bytes().filter_map(digit).collect();
    let mut bytes = Vec::new();
    for chunk in digits.chunks(4) {
        let bits = chunk.iter().enumerate();
        let bits = bits.fold(0, |bits, (i, digit)| bits | digit << (18 - 6 * i));
        let all = [(bits >> 16) as u8, (bits >> 8) as u8, bits as u8];
        bytes.extend(&all[..chunk.len() * 3 / 4]);
    }
    bytes
}

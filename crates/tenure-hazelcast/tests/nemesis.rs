//! Members whose network is partitioned while each of them still reaches its clients, and members whose wall clock jumps.
//!
//! A proxy cannot cut members off from each other, so each member has a host of a network of the test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::{Client, Error, ErrorKind, Guard, HoldState, LostReason, Renew};
use tenure_testkit::clock::Clock;
use tenure_testkit::hazelcast::{java, url_of};
use tenure_testkit::network::{Host, Network};
use tenure_testkit::process::{Port, Process, end, new_directory};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::{TEST_TIMEOUT, needs, until};
use tokio::task::JoinHandle;

mod common;

use common::{runtime, until_renewed};

/// The ttl of sessions, in seconds, where holds end.
const SESSION_TTL: u64 = 10;

const TTL: Duration = Duration::from_secs(SESSION_TTL);

/// Longer than an election and the time limits of a member without the others together, in seconds.
const LONG_SESSION_TTL: u64 = 30;

const LONG: Duration = Duration::from_secs(LONG_SESSION_TTL);

/// Several members that start at the same time need long on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(150);

/// Within this time a member that serves answers each order.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The ports on a host of a network: for orders, and that of the member.
const CONTROL: u16 = 5_700;
const PORT: u16 = 5_701;

/// By how many seconds a wall clock jumps.
const JUMP: u64 = 8;

/// One cluster runs at a time: three members need seconds of a processor to start.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process with one member of a cluster, or with all of them.
struct Members {
    host: Host,
    control: u16,
    dir: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Members {
    /// `own`: the number of the member, or `all`. `all`: where each member of the cluster listens.
    fn start(place: (&Host, u16), before: &[String], own: &str, ttl: u64, all: &[String]) -> Self {
        let (host, control) = place;
        let dir = new_directory("hazelcast");
        let mut command = host.command();
        command.extend_from_slice(before);
        command.extend([java().display().to_string(), "Members".into()]);
        // Three members in the CP subsystem, and a heartbeat of their sessions each second.
        let numbers = [control.to_string(), "3".into(), ttl.to_string(), "1".into()];
        command.extend(numbers);
        command.push(own.into());
        command.extend_from_slice(all);
        let process = Mutex::new(Some(Process::start(&dir, &command)));
        let host = host.clone();
        Self {
            host,
            control,
            dir,
            process,
        }
    }

    /// Three members in one process of this machine, whose wall clock is that of the test. Also returns their ports.
    fn start_with_clock(clock: &Clock) -> (Self, Vec<Port>) {
        let ports: Vec<_> = (0..4).map(|_| Port::reserve()).collect();
        let all: Vec<_> = ports.iter().map(|it| it.number().to_string()).collect();
        let place = (&Host::here(), ports[3].number());
        let members = Self::start(place, &clock.command(), "all", SESSION_TTL, &all[..3]);
        members.until_ready();
        (members, ports)
    }

    fn until_ready(&self) {
        let begin = Instant::now();
        while self.answer("ready").as_deref() != Some("yes") {
            let has_ended = self.process.lock().unwrap().as_ref().unwrap().has_ended();
            if has_ended || begin.elapsed() > START_LIMIT {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
                panic!("the members do not serve:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `None`: no answer, or an error, as of a member that knows no leader.
    fn answer(&self, order: &str) -> Option<String> {
        let mut stream = TcpStream::connect((self.host.address(), self.control)).ok()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
        stream.write_all(format!("{order}\n").as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        let line = line.strip_suffix('\n')?;
        (!line.starts_with("error\t")).then(|| line.to_owned())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        end(&mut self.process, &self.dir);
    }
}

/// Three members, each on a host of its own.
struct Cluster {
    members: Vec<Members>,
    network: Network,
}

impl Cluster {
    /// `None`, with a message: no network can be made.
    fn start(session_ttl: u64) -> Option<Self> {
        let network = Network::new(3)?;
        let addresses: Vec<_> = network.hosts.iter().map(address).collect();
        let start = |(own, host): (usize, &Host)| {
            Members::start(
                (host, CONTROL),
                &[],
                &own.to_string(),
                session_ttl,
                &addresses,
            )
        };
        let members: Vec<_> = network.hosts.iter().enumerate().map(start).collect();
        members.iter().for_each(Members::until_ready);
        Some(Self { members, network })
    }

    /// The URL for clients that know these members only.
    fn url(&self, members: &[usize]) -> String {
        let hosts = members.iter().map(|at| address(&self.members[*at].host));
        let hosts: Vec<_> = hosts.collect();
        // A short limit, so that a member that does not answer is left soon.
        format!("hazelcast://{}?timeout=2s", hosts.join(","))
    }

    /// The member that leads the group of the locks, which exists after the first lock.
    fn leader(&self) -> usize {
        let mut found = None;
        until("a member leads", || {
            let leads = |it: &Members| it.answer("leader\tdefault")?.parse().ok();
            found = self.members.iter().find_map(leads);
            found.is_some()
        });
        found.unwrap()
    }

    /// Holders and waiters of the lock, as the leader has them.
    fn look(&self, name: &str) -> String {
        let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut found = None;
        until("the leader answers", || {
            let order = format!("lock\t{name}");
            found = self.members.iter().find_map(|it| it.answer(&order));
            found.is_some()
        });
        let found = found.unwrap();
        found.rsplit_once(' ').unwrap().0.to_owned()
    }

    fn cut_off(&self, member: usize) {
        for other in others(member) {
            self.network.cut(member, other);
        }
    }

    fn join(&self, member: usize) {
        for other in others(member) {
            self.network.join(member, other);
        }
    }
}

fn address(host: &Host) -> String {
    format!("{}:{PORT}", host.address())
}

fn others(member: usize) -> [usize; 2] {
    [(member + 1) % 3, (member + 2) % 3]
}

/// Repeats a request until the answer is no error that another attempt may change. Members elect a leader meanwhile.
async fn answered<T>(request: impl AsyncFn() -> Result<T, Error>) -> T {
    let begin = Instant::now();
    loop {
        match request().await {
            Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT * 2 => {}
            answer => return answer.unwrap(),
        }
    }
}

async fn connect(url: &str) -> Client {
    answered(async || tenure_hazelcast::connect(url).await).await
}

async fn take(client: &Client, name: &str, ttl: Duration) -> Guard {
    answered(async || client.lock(name).ttl(ttl).acquire().await).await
}

/// Begins to wait behind one holder.
fn wait_behind(
    cluster: &Cluster,
    client: &Client,
    ttl: Duration,
) -> JoinHandle<Result<Guard, Error>> {
    let lock = client.lock("x").ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("it waits", || cluster.look("x") == "1 1");
    waiting
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(TEST_TIMEOUT * 2, future).await;
    outcome.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// A try is not granted, and its error does not say that the lock is held.
async fn assert_grants_nothing(client: &Client) {
    let lock = client.lock("y").ttl(TTL);
    let outcome = in_time("an answer", lock.try_acquire()).await;
    let kind = outcome.map(|_| ()).map_err(|err| err.kind());
    assert!(
        matches!(kind, Err(ErrorKind::Unreachable | ErrorKind::Indeterminate)),
        "{kind:?}"
    );
}

/// The old leader and the holder are on one side; the waiter is on the other side, where the session of the holder ends.
#[test]
fn a_holder_that_is_cut_off_with_the_leader_has_lost_before_the_next_one_holds() {
    needs!(hazelcast);
    let _alone = alone();
    let Some(cluster) = Cluster::start(SESSION_TTL) else {
        return;
    };
    runtime().block_on(async {
        let first = connect(&cluster.url(&[0, 1, 2])).await;
        take(&first, "x", TTL).await.release().await.unwrap();
        let leader = cluster.leader();
        let holder = connect(&cluster.url(&[leader])).await;
        let waiter = connect(&cluster.url(&others(leader))).await;
        let guard = take(&holder, "x", TTL).await;
        until_renewed(&guard, TTL);
        let waiting = wait_behind(&cluster, &waiter, LONG);
        cluster.cut_off(leader);
        let left = in_time("the hold is at risk", guard.at_risk()).await;
        assert!(left.is_some_and(|it| it < TTL), "{left:?}");
        let next = in_time("the next one holds", waiting)
            .await
            .unwrap()
            .unwrap();
        // The members end the session of the holder after the holder's own deadline.
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Expired));
        assert!(next.token() > guard.token());
        drop(guard);
        assert_grants_nothing(&holder).await;

        cluster.join(leader);
        let tried = answered(async || holder.lock("x").ttl(TTL).try_acquire().await).await;
        assert!(tried.is_none(), "two hold it");
        until_renewed(&next, TTL);
        next.release().await.unwrap();
        take(&holder, "x", TTL).await.release().await.unwrap();
        for client in [first, holder, waiter] {
            in_time("a close ends", client.close()).await;
        }
        until("nothing is left", || cluster.look("x") == "0 0");
    });
}

/// Clients that know all members keep hold and place when the member that they are connected to is alone, also when it
/// leads. A client that knows only that member gets no lock.
#[test]
fn clients_of_a_member_that_is_cut_off_go_on_with_the_others() {
    needs!(hazelcast);
    let _alone = alone();
    let Some(cluster) = Cluster::start(LONG_SESSION_TTL) else {
        return;
    };
    runtime().block_on(async {
        let first = connect(&cluster.url(&[0, 1, 2])).await;
        take(&first, "x", LONG).await.release().await.unwrap();
        for leads in [true, false] {
            let leader = cluster.leader();
            let alone = if leads { leader } else { others(leader)[0] };
            let [one, two] = others(alone);
            let (holder, waiter, single) = (
                connect(&cluster.url(&[alone, one, two])).await,
                connect(&cluster.url(&[alone, two, one])).await,
                connect(&cluster.url(&[alone])).await,
            );
            let guard = take(&holder, "x", LONG).await;
            let waiting = wait_behind(&cluster, &waiter, LONG);
            cluster.cut_off(alone);
            until_renewed(&guard, LONG);
            assert_grants_nothing(&single).await;
            assert!(!waiting.is_finished(), "two hold it");
            let token = guard.token();
            if let Err(err) = guard.release().await {
                // The outcome was not known in time; the release goes on in the background.
                assert!(err.is_retryable(), "{err:#}");
            }
            let next = in_time("the waiter's turn", waiting)
                .await
                .unwrap()
                .unwrap();
            assert!(next.token() > token);
            cluster.join(alone);
            until_renewed(&next, LONG);
            next.release().await.unwrap();
            take(&single, "x", LONG).await.release().await.unwrap();
            for client in [holder, waiter, single] {
                in_time("a close ends", client.close()).await;
            }
        }
        first.close().await;
    });
}

/// Sessions end by the wall clock of the leader. The test ends when two clients hold the lock.
#[test]
fn a_wall_clock_of_the_members_that_jumps_forward_lets_two_hold() {
    needs!(hazelcast, "cc");
    let _alone = alone();
    let clock = Clock::make();
    let (_members, ports) = Members::start_with_clock(&clock);
    runtime().block_on(async {
        let url = url_of(&[ports[0].number()]);
        let (holder, other) = (connect(&url).await, connect(&url).await);
        let (begin, mut ahead) = (Instant::now(), 0);
        loop {
            let lock = holder.lock("x").ttl(TTL).renew(Renew::Never);
            let guard = answered(|| lock.acquire()).await;
            let tried = answered(async || other.lock("x").ttl(TTL).try_acquire().await).await;
            assert!(tried.is_none(), "two hold it, and the clock has not jumped");
            ahead += i64::try_from(SESSION_TTL * 2).unwrap();
            clock.set(ahead);
            let next = in_time("the next one holds", take(&other, "x", TTL)).await;
            assert!(next.token() > guard.token());
            let are_two = guard.is_held() && next.is_held();
            drop(guard);
            // A jump during this request may end this session too.
            let _ = next.release().await;
            if are_two {
                break;
            }
            // On a busy machine the first lease may be over by then.
            assert!(begin.elapsed() < TEST_TIMEOUT, "two clients never hold it");
        }
        holder.close().await;
        other.close().await;
    });
}

/// The session of a client that is cut off lasts longer by the jump. The holds of others go on.
#[test]
fn a_wall_clock_of_the_members_that_jumps_back_keeps_a_dead_holder_for_longer() {
    needs!(hazelcast, "cc");
    let _alone = alone();
    let clock = Clock::make();
    let (_members, ports) = Members::start_with_clock(&clock);
    let proxy = Proxy::tcp(ports[0].number());
    runtime().block_on(async {
        let url = url_of(&[ports[1].number()]);
        let (holder, other) = (connect(&url_of(&[proxy.port()])).await, connect(&url).await);
        let kept = take(&other, "kept", TTL).await;
        let begin = Instant::now();
        let guard = take(&holder, "x", TTL).await;
        proxy.hold_both(true);
        clock.set(-i64::try_from(JUMP).unwrap());
        let next = in_time("the next one holds", take(&other, "x", TTL)).await;
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Expired));
        let jump = Duration::from_secs(JUMP);
        assert!(begin.elapsed() >= TTL + jump / 2, "{:?}", begin.elapsed());
        assert!(next.token() > guard.token());
        assert!(kept.is_held(), "{:?}", kept.state());
        until_renewed(&kept, TTL);
        next.release().await.unwrap();
        kept.release().await.unwrap();
        drop(guard);
        proxy.resume();
        holder.close().await;
        other.close().await;
    });
}

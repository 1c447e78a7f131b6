//! `redlock:` over five real servers: some of them stop, die, forget, or change their clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::ErrorKind::{self, Unreachable};
use tenure::store::{Answer, Hold, Release, Request, Store};
use tenure::{Client, Guard, LockName, OwnerId, Renew};
use tenure_core::rt;

use crate::common::answered;
use crate::support::{
    TRUSTED, TTL, assert_says, calls, connect, owner, soon, start_acquire, take, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::redis::{Redis, independent, redlock_url};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3_600);

/// A lease in a tenth of which each node answers, on a busy machine, too. For holds whose end no test waits for.
const UNHURRIED: Duration = Duration::from_secs(40);

/// A lease that is kept for longer than it lasts. When a majority was late, this tries again.
async fn take_to_keep(client: &Client) -> Guard {
    let lock = client.lock("x").ttl(TTL * 3 / 2);
    answered(async || lock.acquire().await).await
}

async fn client_of(servers: &[Redis]) -> Client {
    connect(&format!("{}{TRUSTED}", redlock_url(servers))).await
}

/// How many of the nodes say who holds it.
async fn agreeing(client: &Client, name: &str) -> usize {
    let status = soon(client.inspect(name)).await.unwrap();
    status.nodes.map_or(0, |(agreeing, _)| agreeing)
}

/// Until so many nodes have the hold.
async fn until_agreeing(client: &Client, name: &str, count: usize) {
    let start = Instant::now();
    while agreeing(client, name).await != count {
        assert!(start.elapsed() < TEST_TIMEOUT, "never on {count} nodes");
        tokio::time::sleep(TTL / 40).await;
    }
}

/// Whether it is ours all the time, for several leases.
async fn assert_kept(guard: &Guard) {
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        assert!(guard.is_held(), "{:?}", guard.state());
        tokio::time::sleep(TTL / 20).await;
    }
}

/// One of the servers, asked as `redlock:` asks it.
struct OneOfThem {
    servers: Vec<Redis>,
    node: Arc<dyn Store>,
}

impl OneOfThem {
    async fn start() -> Self {
        let servers = independent(3);
        let node = Self::another(&servers).await;
        Self { servers, node }
    }

    /// As another client, or one that has heard of nothing yet.
    async fn another(servers: &[Redis]) -> Arc<dyn Store> {
        let url = format!("{}{TRUSTED}", redlock_url(servers));
        let nodes = tenure::redis::Store::connect_independent(&url).await;
        nodes.unwrap().swap_remove(0)
    }

    fn request(wait: bool) -> Arc<Request> {
        let name = LockName::new("next").unwrap();
        let mut request = Request::new(name, OwnerId::random(), TTL * 10);
        (request.wait, request.propose) = (wait, Some(7_000));
        Arc::new(request)
    }

    /// A hold, and a waiter for it.
    async fn contended(&self) -> (Hold, tokio::task::JoinHandle<Result<Answer, tenure::Error>>) {
        let first = Self::request(false);
        let token = granted(soon(self.node.clone().acquire(first.clone())).await);
        let waiter = tokio::spawn(self.node.clone().acquire(Self::request(true)));
        until("it waits", || waiting(&self.servers[0], "next") == 1).await;
        (Hold::new(&first, token), waiter)
    }
}

fn granted(answer: Result<Answer, tenure::Error>) -> u64 {
    match answer {
        Ok(Answer::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// A release names the token after its own, so that all servers hand over under one token. If each used its clock, a
/// second round of requests would have to make them agree.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_is_under_the_next_token() {
    needs!(redis);
    let all = OneOfThem::start().await;
    let (hold, waiter) = all.contended().await;
    assert_eq!(hold.token, 7_000);
    soon(all.node.clone().release(hold)).await.unwrap();
    assert_eq!(granted(soon(waiter).await.unwrap()), 7_001);
}

/// The same where a node's answer had not come when the others were a majority already: it is released unseen.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_the_hand_over_of_a_grant_whose_reply_was_not_read() {
    needs!(redis);
    let all = OneOfThem::start().await;
    let (hold, waiter) = all.contended().await;
    let unaware = OneOfThem::another(&all.servers).await;
    soon(unaware.release(hold)).await.unwrap();
    assert_eq!(granted(soon(waiter).await.unwrap()), 7_001);
}

/// And where it still waits: the release is the only request that it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_the_wait_for_what_it_releases() {
    needs!(redis);
    let all = OneOfThem::start().await;
    // The server knows all scripts from now on.
    let before = OneOfThem::request(false);
    let token = granted(soon(all.node.clone().acquire(before.clone())).await);
    soon(all.node.clone().release(Hold::new(&before, token)))
        .await
        .unwrap();
    let first = OneOfThem::request(false);
    let token = granted(soon(all.node.clone().acquire(first.clone())).await);
    let queued = OneOfThem::request(true);
    let mut waiter = all.node.clone().acquire(queued.clone());
    tokio::select! {
        biased;
        answer = &mut waiter => panic!("{answer:?}"),
        () = until("it waits", || waiting(&all.servers[0], "next") == 1) => {}
    }
    // A waiter that has not read its reply yet has to leave the queue with a request of its own. Replies come in the
    // order of the requests, so the waiter's is there now, and one poll reads it.
    soon(all.node.clone().inspect(first.name.clone()))
        .await
        .unwrap();
    let waiter = rt::poll_now(waiter).err().unwrap();
    let before = calls(&all.servers[0], "evalsha");
    let released = soon(all.node.clone().release(Hold::new(&queued, token))).await;
    assert_eq!(released.unwrap(), Release::NotHeld);
    assert!(matches!(soon(waiter).await, Ok(Answer::Busy)));
    assert_eq!(calls(&all.servers[0], "evalsha"), before + 1);
    assert_eq!(waiting(&all.servers[0], "next"), 0);
    soon(all.node.clone().release(Hold::new(&first, token)))
        .await
        .unwrap();
}

/// The first client has A, B and C of five; C restarts empty; the second one asks C, D and E.
struct AfterRestart {
    first: Guard,
    second: Guard,
    /// Whether both claimed to hold it when the second one got it.
    both: bool,
    _others: (Vec<Redis>, Proxy, [Client; 2]),
}

async fn one_of_three_forgets(options: &str, ttl: Duration) -> AfterRestart {
    let servers = independent(5);
    let url = format!("{}?timeout=3s&{options}", redlock_url(&servers));
    for server in &servers[3..] {
        server.order(&["SET", "x", "somebody"]);
    }
    // Cut off from C, it is not told; else it would notice at once that it has two nodes left.
    let proxy = Proxy::redis(servers[2].port());
    let address = format!("127.0.0.1:{}", proxy.port());
    let client = connect(&url.replace(&servers[2].address(), &address)).await;
    // Renewals would bring it to the others meanwhile, and so would requests that wait there.
    let lock = client.lock("x").ttl(ttl).renew(Renew::Never);
    let first = soon(async {
        loop {
            // Refused while the servers are young.
            if let Ok(Some(guard)) = lock.try_acquire().await {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for server in &servers[3..] {
        server.order(&["DEL", "x"]);
    }
    for direction in [Direction::Up, Direction::Down] {
        proxy.hold(direction, true);
    }
    servers[2].restart();
    let other = connect(&url).await;
    let lock = other.lock("x").ttl(ttl);
    let second = soon(lock.acquire()).await.unwrap();
    AfterRestart {
        both: first.is_held(),
        first,
        second,
        _others: (servers, proxy, [client, other]),
    }
}

/// D1: what the delayed restart is for. Clients enforce it; the servers know nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_has_no_vote() {
    needs!(redis);
    let after = one_of_three_forgets("restart_guard=8s", Duration::from_secs(8)).await;
    assert!(!after.both, "two claim to hold it");
    assert!(after.second.token() > after.first.token());
    assert_says(soon(after.first.release()).await, ErrorKind::Lost, &[]);
    soon(after.second.release()).await.unwrap();
}

/// The same without the rule: this is what it prevents.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_guard_two_hold_it() {
    needs!(redis);
    let after = one_of_three_forgets("restart_guard=off", LONG).await;
    assert!(after.both, "the first one cannot know");
    // The fence is what is left: C, which both had, has forgotten the first token.
    assert!(after.second.token() > after.first.token());
}

/// D2: a node that forgot the hold gets it back; a node that has granted the lock to another client keeps that grant.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_heal_and_steal_nothing() {
    needs!(redis);
    let servers = independent(5);
    let (client, other) = (client_of(&servers).await, client_of(&servers).await);
    let guard = take(&client, "x", TTL).await;
    until_agreeing(&other, "x", 5).await;
    let (token, value) = (guard.token(), owner(&servers[0], "x"));
    servers[1].restart();
    servers[4].restart();
    servers[4].order(&["SET", "x", "somebody"]);
    until_agreeing(&other, "x", 4).await;
    assert_eq!(owner(&servers[1], "x"), value);
    assert_kept(&guard).await;
    assert_eq!(owner(&servers[4], "x"), "somebody", "it was stolen");
    servers[4].order(&["DEL", "x"]);
    until_agreeing(&other, "x", 5).await;
    assert!(guard.is_held());
    assert_eq!(guard.token(), token);
    soon(guard.release()).await.unwrap();
    let next = take(&other, "x", UNHURRIED).await;
    assert!(next.token() > token, "{} follows {token}", next.token());
    soon(next.release()).await.unwrap();
}

/// A lock goes round among two clients.
async fn use_it(clients: [&Client; 2]) {
    let mut last = 0;
    for turn in 0..3 {
        let [first, second] = clients;
        let guard = match turn {
            0 => take_to_keep(first).await,
            _ => take(first, "x", UNHURRIED).await,
        };
        let waiter = start_acquire(second.lock("x").ttl(UNHURRIED));
        if turn == 0 {
            assert_kept(&guard).await;
        }
        assert!(guard.token().get() > last);
        soon(guard.release()).await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        last = guard.token().get();
        soon(guard.release()).await.unwrap();
    }
}

/// SIGSTOP: it takes connections and requests, and answers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_stopped_for_ever() {
    needs!(redis);
    let servers = independent(5);
    let (first, second) = (client_of(&servers).await, client_of(&servers).await);
    servers[2].stop();
    use_it([&first, &second]).await;
    // One that has never seen it run.
    let third = client_of(&servers).await;
    use_it([&third, &first]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_are_dead_and_then_three() {
    needs!(redis);
    let servers = independent(5);
    let (first, second) = (client_of(&servers).await, client_of(&servers).await);
    servers[0].kill();
    servers[3].kill();
    use_it([&first, &second]).await;

    let guard = take(&first, "x", TTL).await;
    servers[4].kill();
    // Within the deadline of the hold, and of the timeout; there is no majority to ask.
    soon(guard.lost()).await;
    assert!(!guard.is_held());
    let refused = soon(second.lock("y").ttl(TTL).try_acquire()).await;
    assert_says(refused, Unreachable, &["3 of 5"]);
    let refused = soon(second.lock("y").ttl(TTL).wait(TTL).acquire()).await;
    let refused = refused.unwrap_err().kind();
    assert!(
        matches!(refused, Unreachable | ErrorKind::WaitElapsed),
        "{refused:?}"
    );
    let url = format!("{}{TRUSTED}", redlock_url(&servers));
    assert_says(soon(tenure::connect(&url)).await, Unreachable, &["2 of 5"]);

    // One of them is enough.
    servers[4].launch();
    let lock = second.lock("x").ttl(TTL);
    let mut next = None;
    let start = Instant::now();
    while next.is_none() {
        assert!(start.elapsed() < TEST_TIMEOUT, "never granted again");
        // What the dead holder has left keeps it busy until its ttl is over.
        next = soon(lock.try_acquire()).await.ok().flatten();
    }
    soon(next.unwrap().release()).await.unwrap();
    until("no client holds the lock on any server", || {
        [1, 2, 4]
            .iter()
            .all(|at| owner(&servers[*at], "x").is_empty())
    })
    .await;
}

/// D5 on a minority: its leases end at once, and those of the others hold.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_one_node_jumps() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let mut servers = independent(4);
    servers.push(Redis::start_with_clock(&clock, &[]));
    let (first, second) = (client_of(&servers).await, client_of(&servers).await);
    let mut last = 0;
    for hours in [1, 24, -1] {
        let guard = take_to_keep(&first).await;
        until_agreeing(&second, "x", 5).await;
        clock.set(hours * 3_600);
        let tried = soon(second.lock("x").ttl(UNHURRIED).try_acquire()).await;
        assert!(tried.unwrap().is_none(), "two hold it");
        assert!(guard.is_held(), "{:?}", guard.state());
        until_agreeing(&second, "x", 5).await;
        assert!(guard.token().get() > last);
        last = guard.token().get();
        soon(guard.release()).await.unwrap();
        let next = take(&second, "x", UNHURRIED).await;
        assert!(next.token().get() > last);
        last = next.token().get();
        soon(next.release()).await.unwrap();
    }
}

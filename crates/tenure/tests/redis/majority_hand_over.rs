//! `redlock:` over real servers: a lock passes from task to task of a client, and servers are down, forget, or miss the
//! reservation of tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::store::{Answer, Hold, Request};
use tenure::{Client, FencingToken, LockName, LostReason, OwnerId};

use crate::common::hand_over::{hold_for_a_moment, pass_on, passed_on, turns};
use crate::support::{
    TRUSTED, assert_all_expire, calls, connect, owner, soon, take, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::{Redis, independent, redlock_url};

/// A lease in a tenth of which each node answers, on a busy machine, too.
const UNHURRIED: Duration = Duration::from_secs(40);

/// Years ahead of all clocks, so that tokens are what the servers have counted.
const AHEAD: u64 = 1 << 51;

/// How many tokens a turn reserves after its first one.
const RESERVED: u64 = 32;

fn url_of(servers: &[Redis]) -> String {
    format!("{}{TRUSTED}", redlock_url(servers))
}

async fn client_of(servers: &[Redis]) -> Client {
    connect(&url_of(servers)).await
}

/// The last token that the server knows, and the rest of the record.
fn record(server: &Redis) -> (u64, String) {
    let hold = server.ask(&["GET", "tenure:{x}:hold"]).text();
    let text = hold.trim_start_matches('+').to_owned();
    let token = text.split(' ').next().unwrap_or_default().parse();
    (token.unwrap_or(0), text)
}

/// Until so many servers have the hold, and its last token.
async fn until_all_know(servers: &[Redis], last: u64) {
    let know = || servers.iter().all(|server| record(server).0 == last);
    until("all servers know the last token", know).await;
}

/// From now on tokens are far ahead of the clocks.
async fn go_ahead(servers: &[Redis]) {
    let nodes = tenure::redis::Store::connect_independent(&url_of(servers)).await;
    for node in nodes.unwrap() {
        let name = LockName::new("x").unwrap();
        let mut request = Request::new(name, OwnerId::random(), UNHURRIED);
        request.propose = Some(AHEAD);
        let request = Arc::new(request);
        let answer = soon(node.clone().acquire(request.clone())).await.unwrap();
        let Answer::Granted(grant) = answer else {
            panic!("{answer:?}");
        };
        soon(node.release(Hold::new(&request, grant.token)))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_tokens_of_their_own_and_few_requests() {
    needs!(redis);
    let servers = independent(3);
    let (client, other) = (client_of(&servers).await, client_of(&servers).await);
    let lock = client.lock("x").ttl(UNHURRIED);
    let start = Instant::now();
    loop {
        let before = take(&other, "x", UNHURRIED).await;
        let last = before.token().get();
        let requests = calls(&servers[0], "evalsha");
        let holds = pass_on(&lock, before, 40).await;
        let requests = calls(&servers[0], "evalsha") - requests;
        assert!(holds.keys().all(|token| *token > last));
        let turns = turns(&holds);
        assert!(turns.iter().all(|tasks| *tasks <= 33), "{turns:?}");
        // One by one they would be 80.
        if requests < 40 {
            break;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{requests} requests");
    }
    until("it is free", || owner(&servers[0], "x").is_empty()).await;
    servers.iter().for_each(assert_all_expire);
}

/// The bound holds between processes: the servers know nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_has_its_turn() {
    needs!(redis);
    let servers = independent(3);
    let clients = [client_of(&servers).await, client_of(&servers).await];
    let lock = |client: &Client| client.lock("x").ttl(UNHURRIED).local_hand_overs(3);
    let all_wait = |count| servers.iter().all(|server| waiting(server, "x") == count);
    let before = take(&clients[0], "x", UNHURRIED).await;
    let mut many = vec![tokio::spawn(hold_for_a_moment(lock(&clients[0])))];
    until("the task waits", || all_wait(1)).await;
    many.extend((0..20).map(|_| tokio::spawn(hold_for_a_moment(lock(&clients[0])))));
    let other = tokio::spawn(hold_for_a_moment(lock(&clients[1])));
    until("the other client waits", || all_wait(2)).await;
    soon(before.release()).await.unwrap();
    let (other, _) = soon(other).await.unwrap();
    let mut tasks_before = 0;
    for task in many {
        tasks_before += u32::from(soon(task).await.unwrap().0 < other);
    }
    // Where the servers hand over in different orders, chance decides about the first turns.
    assert!(tasks_before < 20, "{tasks_before} tasks came before");
}

/// A server that missed the reservation ends its part of the hold, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_hold_by_any_token_of_the_turn() {
    needs!(redis);
    let servers = independent(3);
    let proxy = Proxy::redis(servers[1].port());
    let client = connect(&url_of(&servers).replace(&servers[1].address(), &proxy.address())).await;
    let other = client_of(&servers).await;
    for which in ["the first", "that of the holder", "the shown one"] {
        for misses in [false, true] {
            if misses {
                proxy.plan("reserve", Fault::CutBefore);
            }
            let (first, guard) = passed_on(&client, "x").await;
            let last = first + RESERVED;
            let status = soon(other.inspect("x")).await.unwrap();
            assert_eq!(status.holds[0].token, Some(FencingToken::new(last)));
            for wrong in [first - 1, last + 1] {
                let token = FencingToken::new(wrong);
                assert!(!soon(other.break_lock("x", token)).await.unwrap());
            }
            let token = match which {
                "the first" => FencingToken::new(first),
                "that of the holder" => guard.token(),
                _ => FencingToken::new(last),
            };
            assert!(soon(other.break_lock("x", token)).await.unwrap(), "{which}");
            assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
            let are_free = || servers.iter().all(|server| owner(server, "x").is_empty());
            until("no server has the hold", are_free).await;
            proxy.resume();
        }
    }
}

/// The holder ends in the middle of its turn. One server was down at the reservation, another one is down afterwards, and
/// tokens are ahead of the clocks.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_tokens_are_never_granted_again() {
    needs!(redis);
    let servers = independent(3);
    let (client, other) = (client_of(&servers).await, client_of(&servers).await);
    go_ahead(&servers).await;
    for down in 0..3 {
        servers[down].kill();
        let (first, guard) = passed_on(&client, "x").await;
        assert!(first > AHEAD);
        let up = || (0..3).filter(|at| *at != down);
        for at in up() {
            until("it is reserved", || {
                record(&servers[at]).0 == first + RESERVED
            })
            .await;
        }
        // As at the end of the lease.
        up().for_each(|at| drop(servers[at].order(&["DEL", "x"])));
        // The node restarts empty, and the next majority has only one server of the majority before.
        servers[down].launch();
        let next = up().next().unwrap();
        servers[next].stop();
        // A request that the node did not answer before its end may be granted for a moment now, and one more may fail.
        let later = soon(other.lock("x").ttl(UNHURRIED).acquire())
            .await
            .unwrap();
        assert!(later.token().get() > first + RESERVED);
        assert!(guard.token().get() <= first + RESERVED);
        servers[next].resume();
        drop(guard);
        soon(later.release()).await.unwrap();
        until("it is free everywhere", || {
            servers.iter().all(|server| owner(server, "x").is_empty())
        })
        .await;
    }
}

/// All servers restart empty, one after the other. Each gets the hold back, and the tokens that are reserved for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_learns_of_the_reservation() {
    needs!(redis);
    let servers = independent(3);
    let (client, other) = (client_of(&servers).await, client_of(&servers).await);
    go_ahead(&servers).await;
    let (first, guard) = passed_on(&client, "x").await;
    let last = first + RESERVED;
    until_all_know(&servers, last).await;
    for server in &servers {
        server.restart();
        until("it has the turn again", || {
            record(server).1.contains(&format!("\"turn\":{first}"))
        })
        .await;
        assert_eq!(record(server).0, last);
    }
    assert!(guard.is_held());
    let first = FencingToken::new(first);
    assert!(soon(other.break_lock("x", first)).await.unwrap());
    assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
}

/// A server missed the reservation. The next holder has a token after the reserved ones, and that server knows it, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_after_a_turn_is_under_a_later_token() {
    needs!(redis);
    let servers = independent(3);
    go_ahead(&servers).await;
    let proxy = Proxy::redis(servers[1].port());
    let client = connect(&url_of(&servers).replace(&servers[1].address(), &proxy.address())).await;
    let other = client_of(&servers).await;
    proxy.plan("reserve", Fault::CutBefore);
    let (first, guard) = passed_on(&client, "x").await;
    let next = tokio::spawn(async move { other.lock("x").ttl(UNHURRIED).acquire().await });
    let all_wait = || servers.iter().all(|server| waiting(server, "x") == 1);
    until("it waits", all_wait).await;
    soon(guard.release()).await.unwrap();
    // The very next one, unless this client gives a server back where the hand-over comes first.
    let next = soon(next).await.unwrap().unwrap();
    assert!(next.token().get() > first + RESERVED);
    until_all_know(&servers, next.token().get()).await;
    soon(next.release()).await.unwrap();
}

/// The server grants what that request has proposed, which is less than the token of the hand-over on the other servers. So the
/// holder can tell it the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_the_next_holder_reaches_late_has_the_token_of_the_others() {
    needs!(redis);
    let servers = independent(3);
    let proxy = Proxy::redis(servers[2].port());
    let client = client_of(&servers).await;
    let other = connect(&url_of(&servers).replace(&servers[2].address(), &proxy.address())).await;
    let guard = take(&client, "x", UNHURRIED).await;
    proxy.plan("acquire", Fault::Late(Duration::from_secs(1)));
    let next = tokio::spawn(async move { other.lock("x").ttl(UNHURRIED).acquire().await });
    let two_wait = || servers[..2].iter().all(|server| waiting(server, "x") == 1);
    until("it waits", two_wait).await;
    soon(guard.release()).await.unwrap();
    let next = soon(next).await.unwrap().unwrap();
    until_all_know(&servers, next.token().get()).await;
    soon(next.release()).await.unwrap();
}

/// A hold that is detached in the middle of a turn is attached under its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_has_passed_on_can_be_detached() {
    needs!(redis);
    let servers = independent(3);
    let (client, other) = (client_of(&servers).await, client_of(&servers).await);
    let (first, guard) = passed_on(&client, "x").await;
    let token = guard.token();
    let receipt = soon(guard.detach()).await.unwrap();
    client.close().await;
    let guard = soon(other.attach(&receipt)).await.unwrap();
    assert_eq!(guard.token(), token);
    let first = FencingToken::new(first);
    assert!(soon(other.break_lock("x", first)).await.unwrap());
    assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
}

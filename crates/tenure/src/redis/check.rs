//! What `tenure check` finds: whether the servers suit locks, and whether this user may take one.

use std::time::Duration;

use redis::Cmd;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;
use tenure_core::store::{Finding, Severity};
use tenure_core::url::Host;

use crate::tls;

use super::connection::{Persistence, Script, ServerInfo};
use super::format::Keys;
use super::observe;
use super::store::Store;

/// Writes keys that end at once, because a key that stays would be listed, and publishes on channels. `ARGV`: the command
/// that publishes on the first channel, and the channels.
const CHECK: &str = "for _, key in ipairs(KEYS) do redis.call('SET', key, '', 'PX', 1) end
redis.call(ARGV[1], ARGV[2], '')
if ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3], '') end
return 1";

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let settings = &store.context.settings;
    let mut findings = Vec::new();
    for connection in store.connections.all().await? {
        let host = &connection.host;
        let info = &connection.server_info;
        findings.extend(server(info, host, settings.restart_guard));
        findings.extend(tls::plaintext(
            host,
            settings.servers.is_tls(),
            "rediss://, or tls=on",
        ));
        if let Some(until) = store.context.untrusted_until(&connection, Duration::ZERO) {
            let left = until.since(store.context.now());
            findings.push(Finding::warning(format!(
                "{host}: started lately: nothing is granted for another {left:.0?} (restart_guard)"
            )));
        }
    }
    findings.extend(check_write(store).await);
    findings.extend(check_tell(store).await);
    Ok(findings)
}

/// What is good or bad about one server.
fn server(info: &ServerInfo, host: &Host, guard: Option<Duration>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find =
        |severity, text: String| found.push(Finding::new(severity, format!("{host}: {text}")));
    if info.is_unknown {
        find(
                Severity::Warning,
                "this user may not run INFO, so nothing is known of the server and it counts as just started; allow +info".into(),
            );
        return found;
    }
    find(
        Severity::Good,
        format!("{}, up for {}", info.version, human_readable(info.uptime)),
    );
    let (severity, text) = durability(info.persistence, guard);
    find(severity, text);
    if let Some(policy) = &info.evicts {
        find(
            Severity::Bad,
            format!(
                "when its memory is full it throws away keys ({policy}), locks among them; set maxmemory-policy to noeviction"
            ),
        );
    }
    if info.replicas > 0 {
        find(
            Severity::Warning,
            format!(
                "{} replicas copy it late: a lock granted just before a failover may be granted again after it; wait_replicas={} narrows that",
                info.replicas, info.replicas
            ),
        );
    }
    find(
            Severity::Warning,
            "leases end by the server's wall clock: a jump forward ends them early; correct the clock gradually (slew it), never set it".into(),
        );
    found
}

/// Whether locks survive a restart, and what happens if they do not.
fn durability(persistence: Persistence, guard: Option<Duration>) -> (Severity, String) {
    match (persistence, guard) {
            (Persistence::Full, _) => (
                Severity::Good,
                "every write is on disk before it is answered: locks survive a restart".into(),
            ),
            (Persistence::Mostly, Some(guard)) => (
                Severity::Good,
                format!("writes reach the disk every second; after a restart nothing is granted for {guard:?} (restart_guard)"),
            ),
            (Persistence::None, Some(guard)) => (
                Severity::Good,
                format!("a restart forgets locks; after one nothing is granted for {guard:?} (restart_guard)"),
            ),
            (Persistence::Mostly, None) => (
                Severity::Warning,
                "restart_guard is off: after a loss of power two clients can hold a lock; set it to the longest ttl in use, or appendfsync to always".into(),
            ),
            // A warning only: the table of guarantees says the same, and no other guarantee becomes void.
            (Persistence::None, None) => (
                Severity::Warning,
                "restart_guard is off and the server forgets locks when it restarts: then two clients can hold a lock; set restart_guard to the longest ttl in use".into(),
            ),
        }
}

fn human_readable(uptime: Duration) -> String {
    match uptime.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7200 => format!("{} min", secs / 60),
        secs @ 7200..172_800 => format!("{} h", secs / 3600),
        secs => format!("{} days", secs / 86_400),
    }
}

/// Runs a script that writes two keys of ours, which expire at once, as a grant does, and publishes as a release does: with
/// an access list, missing replicas, a full memory or a full disk a server may refuse a script or a write, and accept
/// everything else.
async fn check_write(store: &Store) -> Option<Finding> {
    let name = format!("tenure-check-{}", OwnerId::random().to_hex());
    let keys = store.requests.keys(&LockName::new(name).ok()?);
    let channel = &*store.requests.channel(keys.lock());
    let publish = match channel == store.context.events.channel {
        true => "PUBLISH",
        false => "SPUBLISH",
    };
    let args = |cmd: &mut Cmd| {
        let of_lock = match &keys {
            Keys::Token(_) => "",
            Keys::Redisson(keys) => keys.channel(),
        };
        cmd.arg(publish).arg(channel).arg(of_lock);
    };
    let script = Script::new("check", CHECK);
    let both = [keys.lock(), keys.hold()];
    let reply = store.connections.call::<i64>(&script, &both, &args);
    let err = reply.await.err()?;
    let text = format!("no lock can be taken: {err:#}");
    Some(Finding::bad(text))
}

/// Publishes as a leader does, and subscribes as an observer does.
async fn check_tell(store: &Store) -> Option<Finding> {
    let scripts = store.requests.elections?;
    let name = format!("tenure-check-{}", OwnerId::random().to_hex());
    let name = LockName::new(name).ok()?;
    let keys = store.requests.keys(&name);
    let asked = keys.asked();
    let (all, count) = keys.with(asked.as_deref());
    let told = store
        .connections
        .call::<i64>(&scripts.tell, &all[..count], &|_| {});
    let outcome = match told.await {
        Ok(_) => observe::check(store, &keys).await,
        Err(err) => Err(err),
    };
    let err = outcome.err()?;
    let text = format!("no election is possible, and locks are: {err:#}");
    Some(Finding::warning(text))
}

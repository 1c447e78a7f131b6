//! Which store, and what it may be called in public.

use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Client, Error};

use crate::args::Common;
use crate::exit::Exit;
use crate::output::Talk;
use crate::signals::Signals;

/// How long the clean-up of a wait that was given up, and of the link itself, may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The store that was asked for; without a word, the directory of this user.
pub(crate) fn url(common: &Common) -> &str {
    common
        .url
        .as_deref()
        .filter(|url| !url.is_empty())
        .unwrap_or("file:")
}

/// Runs `action` to its end, on this thread.
pub(crate) fn block_on(talk: &Talk, action: impl Future<Output = Exit>) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            talk.error(format!("cannot start the runtime: {error}"));
            return Exit::Failed;
        }
    };
    let exit = runtime.block_on(action);
    // What is left in the background is not worth waiting for: leases run out.
    runtime.shutdown_background();
    exit
}

/// Opens it.
///
/// # Errors
/// Those of [`tenure::connect`].
async fn connect(common: &Common) -> Result<Client, Error> {
    tenure::connect(url(common)).await
}

/// Opens it, does `work` with it and closes it, whatever came of the work: a session that is not closed lives on in the
/// store after this process has ended.
///
/// # Errors
/// Those of [`tenure::connect`] and of `work`.
pub(crate) async fn with_client<T>(
    common: &Common,
    work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let client = connect(common).await?;
    let outcome = work(&client).await;
    close(&client).await;
    outcome
}

/// Opens it, unless a signal comes first: `Ok(Err(signal))`. What has been opened by then is closed, unless another
/// signal comes.
///
/// # Errors
/// Those of [`tenure::connect`].
pub(crate) async fn connect_unless_ended(
    common: &Common,
    signals: &mut Signals,
) -> Result<Result<Client, Signal>, Error> {
    let mut connecting = pin!(connect(common));
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        client = &mut connecting => return client.map(Ok),
    };
    let finish = async {
        // The server may have opened a session that we do not know of yet.
        if let Ok(Ok(client)) = tokio::time::timeout(CLOSE_LIMIT, connecting).await {
            close(&client).await;
        }
    };
    tokio::select! {
        biased;
        _ = signals.next() => {}
        () = finish => {}
    }
    Ok(Err(signal))
}

/// Ends the link, so that nothing of this process stays behind in the store.
pub(crate) async fn close(client: &Client) {
    // When the store does not answer, leases do the rest.
    let _ = tokio::time::timeout(CLOSE_LIMIT, client.close()).await;
}

/// A URL without its secrets: user info and the values of options are left out, and whatever may be one of the two in
/// a URL that is not well-formed.
pub(crate) fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else {
        return "***".into();
    };
    // A password may have anything in it, unescaped: what stands before the last @ is not looked at.
    let is_path = matches!(scheme, "file" | "sqlite" | "memory");
    let (has_login, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) if !is_path => (true, rest),
        _ => (false, rest),
    };
    let (base, query) = rest
        .split_once('?')
        .map_or((rest, None), |(base, query)| (base, Some(query)));
    let mut text = match base.strip_prefix("//") {
        _ if is_path => format!("{scheme}:{base}"),
        _ if has_login => format!("{scheme}://***@{}", without_words(base)),
        Some(hosts) => format!("{scheme}://{}", without_words(hosts)),
        None => format!("{scheme}:***"),
    };
    for (index, option) in query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .enumerate()
    {
        text.push(if index == 0 { '?' } else { '&' });
        match option.split_once('=') {
            Some((key, _)) => text += &format!("{key}=***"),
            None => text += "***",
        }
    }
    text
}

/// Hosts and a path. What should be a port and is none was meant as a password, with the rest forgotten.
fn without_words(hosts: &str) -> String {
    let (all, path) = hosts.find('/').map_or((hosts, ""), |at| hosts.split_at(at));
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_good = |host: &str| {
        // The brackets of an IPv6 address have colons in them.
        let rest = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
        rest.split_once(':').is_none_or(|(_, port)| is_port(port))
    };
    match all.split(',').all(is_good) {
        true => hosts.to_owned(),
        false => format!("***{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out() {
        for (url, shown) in [
            ("file:/var/lib/locks", "file:/var/lib/locks"),
            ("file:", "file:"),
            ("redis://host:6379/2", "redis://host:6379/2"),
            (
                "redis://user:pa@ss@host/2?protocol=resp3",
                "redis://***@host/2?protocol=***",
            ),
            ("redis://:pa/ss@host/2", "redis://***@host/2"),
            ("redis://user:pa?ss@host/2", "redis://***@host/2"),
            ("redis://user:pa?s=s&x@[::1]:7/2", "redis://***@[::1]:7/2"),
            ("redis://user:hunter2", "redis://***"),
            ("redis://user:hunter2/2?x=y", "redis://***/2?x=***"),
            ("redis:hunter2", "redis:***"),
            ("file:/a@b", "file:/a@b"),
            ("hunter2", "***"),
            ("sqlite:/x.db?table=y", "sqlite:/x.db?table=***"),
            ("redis://[::1],h:7/", "redis://[::1],h:7/"),
            ("etcd://a,b,c?password=x&y", "etcd://a,b,c?password=***&***"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}

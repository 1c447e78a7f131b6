//! Which store, and what it may be called in public.

use std::time::Duration;

use tenure::{Client, Error};

use crate::args::Common;
use crate::exit::Exit;
use crate::output::Talk;

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
pub(crate) async fn connect(common: &Common) -> Result<Client, Error> {
    tenure::connect(url(common)).await
}

/// Ends the link, so that nothing of a wait stays behind in the store.
pub(crate) async fn close(client: &Client) {
    // When the store does not answer, leases do the rest.
    let _ = tokio::time::timeout(CLOSE_LIMIT, client.close()).await;
}

/// A URL without its secrets: user info and the values of options are left out.
pub(crate) fn redacted(url: &str) -> String {
    let (base, query) = url
        .split_once('?')
        .map_or((url, None), |(base, query)| (base, Some(query)));
    let mut text = match base.split_once("//") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            // Up to the last @: a password may hold one, and slashes are not looked for in front of it.
            match (rest.rfind('@'), authority.rfind('@')) {
                (Some(at), None) => format!("{scheme}//***@{}", &rest[at + 1..]),
                (_, Some(at)) => format!("{scheme}//***@{}{path}", &authority[at + 1..]),
                (None, None) => base.to_string(),
            }
        }
        None => base.to_string(),
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
            ("etcd://a,b,c?password=x&y", "etcd://a,b,c?password=***&***"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}

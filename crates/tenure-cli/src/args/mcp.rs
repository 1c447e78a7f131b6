//! The flags of `mcp`.

use std::time::Duration;

use clap::Args;

use crate::duration;

const MCP_HELP: &str = "\
A client of the Model Context Protocol starts this command, and sends its messages to standard input:
  {\"mcpServers\": {\"tenure\": {\"command\": \"tenure\", \"args\": [\"mcp\"]}}}

Tools:
  take     take locks, and wait for them; with `keep_for` the hold goes on without the client
  renew    keep a hold that has a receipt for longer
  release  give a hold back
  list     who holds which lock
  wait     wait until a lock is free, without taking it

A hold is renewed while its client is connected. It is released when standard input ends or a signal
comes. If this process is killed, the hold ends at most --ttl later. A hold with `keep_for` ends
when it is released by its receipt or its time is over, whatever becomes of the client.

Others see the name of the client and the text that it gives in `list`, `status` and `watch`.
Standard output has messages of the protocol only; -v prints what is taken and released to standard
error, without receipts.";

#[derive(Debug, Args)]
#[command(after_long_help = MCP_HELP)]
pub(crate) struct Mcp {
    /// How long a hold lasts at most when its client is gone and could not release it
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = duration::parse_ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
}

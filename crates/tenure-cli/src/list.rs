//! `tenure list`: prints the locks that are held, and who holds them.

use tenure::Client;

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::holds_table::holds_table;
use crate::json;
use crate::results::print_results;
use crate::store;

pub(crate) async fn list(common: &Common, args: &args::List, console: &Console) -> Exit {
    print_results(console, async {
        let list = async |client: &Client| client.list(&*args.prefix).await;
        let all = store::with_client(common, list).await?;
        Ok(if console.json {
            let lines = all
                .iter()
                .map(|status| json::status_json(status).to_string());
            (lines.collect(), Exit::Done)
        } else if all.is_empty() {
            console.notice("nothing is held");
            (Vec::new(), Exit::Done)
        } else {
            (vec![holds_table(&all)], Exit::Done)
        })
    })
    .await
}

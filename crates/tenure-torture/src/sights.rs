//! What observers saw, as bars for the timeline.

use std::collections::HashMap;

use crate::elections::ObserverHistory;
use crate::event::Sight;
use crate::history::History;
use crate::legend::NAME_COLORS;
use crate::settings::worker_of;
use crate::text::shortened;

/// The number of elections that have a line of their own in the row of a worker.
pub(crate) const LINES: usize = 2;

/// Something that an observer believed for a while.
pub(crate) struct SightBar {
    pub(crate) class: String,
    pub(crate) worker: usize,
    /// The line in the row of the worker.
    pub(crate) line: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) text: String,
}

/// A bar for each leader that an observer saw, and for each time in which it did not know who leads.
pub(crate) fn bars(history: &History) -> Vec<SightBar> {
    let names = history.election_names();
    let publications = history.elections.publications.iter();
    let publishers: HashMap<&str, usize> = publications
        .map(|it| (it.value.as_str(), worker_of(it.acquisition)))
        .collect();
    let mut bars = Vec::new();
    for observer in &history.elections.observers {
        let line = names.iter().position(|name| *name == observer.name);
        let line = line.unwrap_or(0) % LINES;
        for (index, item) in observer.items.iter().enumerate() {
            let Some((class, text)) = look_of(&item.sight, observer, &publishers) else {
                continue;
            };
            let next = observer.items.get(index + 1);
            bars.push(SightBar {
                class,
                worker: observer.worker,
                line,
                from: item.at,
                to: next.map_or(observer.to, |next| next.at),
                text,
            });
        }
    }
    bars
}

/// The class and the text of a bar; none for a time without a leader.
fn look_of(
    sight: &Sight,
    observer: &ObserverHistory,
    publishers: &HashMap<&str, usize>,
) -> Option<(String, String)> {
    let (worker, name) = (observer.worker, shortened(&observer.name));
    match sight {
        Sight::Leader { token, value } => {
            let publisher = value.as_deref().and_then(|value| publishers.get(value));
            let (color, who) = match publisher {
                Some(leader) => (leader % NAME_COLORS, format!("worker {leader}")),
                None => (0, "an unknown leader".to_owned()),
            };
            let token = token.map_or("no token".to_owned(), |token| format!("token {token}"));
            let text = format!("worker {worker} sees {who} lead {name} with {token}");
            Some((format!("sight n{color}"), text))
        }
        Sight::Unsure(why) | Sight::GaveUp(why) => {
            let text = format!("worker {worker} does not know who leads {name} ({why})");
            Some(("blind".to_owned(), text))
        }
        Sight::Nobody => None,
    }
}

//! What the tools are and what they want, as the client and its user read it.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// The names of the tools, in the order in which they are listed.
pub(super) const NAMES: [&str; 5] = ["take", "renew", "release", "list", "wait"];

/// What a client may show to its user or to a model, beside the tools.
pub(super) const INSTRUCTIONS: &str = "\
Locks by name, which exclude other clients on this machine or, with a store on a server, on several machines. \
`take` a name before work that must not overlap with that of others, and `release` the hold after it. \
A hold of `take` is renewed while this session lives, and ends with it; with `keep_for` it goes on without the session, under a \
receipt, for which `renew` and `release` ask. The receipt is a secret of its holder. \
After an error of the kind `lost` another client may have the lock: stop the work. \
`busy` says who holds the lock; take it later, with a longer `wait`. \
Each hold has a fencing token, a number that grows with each hold of the name: give it to what checks it.";

pub(super) fn all() -> Vec<Tool> {
    vec![take(), renew(), release(), list(), wait()]
}

const WAIT: &str = "How long to wait at most, such as \"0s\", \"30s\" or \"10m\"; default \"30s\". A client that asked for progress learns who holds the lock, and its place in the queue where the store knows it.";

fn take() -> Tool {
    let about = "Take locks: all of the names or none of them. Waits while another client holds one. \
        The hold is renewed while this session lives, and ends with it; with `keep_for` it goes on without the session.";
    let properties = json!({
        "names": names("Names to take. Names that belong together can be written like paths: \"repo/schema\"."),
        "holder": text("What others see who ask for the holder, for example who works on what. The name of the client stands before it."),
        "mode": {
            "type": "string",
            "enum": ["exclusive", "shared", "permits"],
            "description": "\"exclusive\" (default): alone. \"shared\": together with others that take it shared. \"permits\": at most `permits` holders at the same time.",
        },
        "permits": {
            "type": "integer",
            "minimum": 1,
            "description": "With the mode \"permits\": how many may hold the name at the same time. All clients say the same number.",
        },
        "any": { "type": "boolean", "description": "Take one of the names, the first one that is free, and not all." },
        "wait": text(WAIT),
        "keep_for": text("Keep the hold for this time without the session, from \"1s\" to \"30d\". The answer has a receipt; without it the hold lasts until the time is over."),
    });
    let annotations = ToolAnnotations::new().read_only(false).destructive(false);
    tool("take", about, properties, &["names"]).with_annotations(annotations)
}

fn renew() -> Tool {
    let about = "Keep the hold of a receipt for longer: its time begins again. With `hold`: say whether the hold of this session goes on, which is renewed by itself.";
    let properties = json!({
        "receipt": text("The receipt that `take` with `keep_for` gave, or `tenure take`."),
        "keep_for": text("With a receipt: how long the hold lasts from now on, from \"1s\" to \"30d\"; default: as when it was taken. A hold never ends earlier by this."),
        "hold": text("The id of a hold of this session, such as \"h1\"."),
    });
    let annotations = ToolAnnotations::new().read_only(false).destructive(false);
    tool("renew", about, properties, &[]).with_annotations(annotations.idempotent(true))
}

fn release() -> Tool {
    let about = "Give a hold back. An error of the kind `lost` says that the hold was over before.";
    let properties = json!({
        "hold": text("The id of a hold of this session, such as \"h1\"."),
        "receipt": text("The receipt of a hold that was taken with `keep_for`, or by `tenure take`."),
    });
    let annotations = ToolAnnotations::new().read_only(false);
    tool("release", about, properties, &[]).with_annotations(annotations)
}

fn list() -> Tool {
    let about =
        "List the locks that are held: who holds them, since when, with which token, for how long.";
    let properties = json!({ "prefix": text("List only names that begin with this.") });
    let annotations = ToolAnnotations::new().read_only(true);
    tool("list", about, properties, &[]).with_annotations(annotations)
}

fn wait() -> Tool {
    let about = "Wait until a name is free, without taking it. Another client can take it at any time after that, so work under a lock needs `take`.";
    let properties =
        json!({ "name": text("The name of the lock, which need not exist."), "wait": text(WAIT) });
    let annotations = ToolAnnotations::new().read_only(true);
    tool("wait", about, properties, &["name"]).with_annotations(annotations)
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn names(description: &str) -> Value {
    json!({
        "type": "array",
        "items": { "type": "string" },
        "minItems": 1,
        "description": description,
    })
}

fn tool(name: &'static str, about: &'static str, properties: Value, required: &[&str]) -> Tool {
    let mut schema = JsonObject::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties);
    schema.insert("required".into(), required.into());
    schema.insert("additionalProperties".into(), false.into());
    Tool::new(name, about, Arc::new(schema))
}

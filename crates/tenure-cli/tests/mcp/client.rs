//! A client of the Model Context Protocol that speaks JSON-RPC over the pipes of its server.

use serde_json::{Value, json};

use crate::support::{PipedProcess, Store};

/// A client with its server.
pub(crate) struct Client {
    pub(crate) server: PipedProcess,
    last: u64,
    /// What came while something else was waited for.
    unread: Vec<Value>,
}

impl Client {
    /// Starts a server on this store, with these flags, and begins a session as a client of this name.
    pub(crate) fn start(store: &Store, flags: &[&str], name: &str) -> Self {
        let mut client = Self {
            server: store.start(&[&["mcp"], flags].concat()),
            last: 0,
            unread: Vec::new(),
        };
        let hello = client.request(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": { "name": name, "version": "1" },
            }),
        );
        let hello = client.answer(hello);
        assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(hello["result"]["serverInfo"]["name"], "tenure");
        client.notify("notifications/initialized", json!({}));
        client
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn write(&mut self, message: &Value) {
        self.server.write_line(&message.to_string());
    }

    /// The first message of which this is true. Each line of standard output is one message.
    fn message(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.unread.iter().position(&is_wanted) {
            return self.unread.remove(at);
        }
        loop {
            let line = self.server.line();
            assert!(!line.is_empty(), "the server is gone");
            let message: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(message["jsonrpc"], "2.0");
            if is_wanted(&message) {
                return message;
            }
            self.unread.push(message);
        }
    }

    pub(crate) fn answer(&mut self, id: u64) -> Value {
        self.message(|it| it["id"] == id)
    }

    /// Begins a call, with its id as the token for progress.
    pub(crate) fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        let token = self.last + 1;
        let params =
            json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": token } });
        self.request("tools/call", params)
    }

    /// The next report of this call.
    pub(crate) fn progress(&mut self, call: u64) -> String {
        let message = self.message(|it| it["params"]["progressToken"] == call);
        assert_eq!(message["method"], "notifications/progress");
        message["params"]["message"].as_str().unwrap().into()
    }

    /// The result of a call that succeeds.
    pub(crate) fn result(&mut self, call: u64) -> Value {
        let answer = self.answer(call);
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{answer}");
        assert!(!result["content"][0]["text"].as_str().unwrap().is_empty());
        result["structuredContent"].clone()
    }

    /// The kind and the message of a call that fails.
    pub(crate) fn failure(&mut self, call: u64) -> (String, String) {
        let answer = self.answer(call);
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{answer}");
        let error = &result["structuredContent"]["error"];
        let [kind, message] = ["kind", "message"].map(|it| error[it].as_str().unwrap());
        let shown = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(shown, format!("{kind}: {message}"));
        (kind.into(), message.into())
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let call = self.begin(tool, arguments);
        self.result(call)
    }

    /// Calls a tool, which fails with this kind, and says these words.
    pub(crate) fn fails(&mut self, tool: &str, arguments: Value, kind: &str, words: &[&str]) {
        let call = self.begin(tool, arguments);
        let (found, message) = self.failure(call);
        assert_eq!(found, kind, "{message}");
        for word in words {
            assert!(message.contains(word), "{word} is missing: {message}");
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> String {
        let hold = self.call("take", json!({ "names": [name] }));
        hold["hold"].as_str().unwrap().into()
    }

    /// Ends standard input, and waits for the end of the server. Returns what it printed on standard error.
    pub(crate) fn end(mut self) -> String {
        self.server.close_input();
        assert_eq!(self.server.code(), 0);
        self.server.err_rest()
    }
}

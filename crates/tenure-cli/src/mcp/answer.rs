//! What a call gets back: fields for programs, and the same as text.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};
use tenure::{Error, ErrorKind};

/// An answer without an error.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) fields: Value,
}

/// Why a tool did not do what it was asked for. The client reads it, so it is no error of the protocol, which clients hide.
pub(super) struct Failure {
    kind: &'static str,
    message: String,
    /// More fields beside `kind` and `message`.
    fields: Value,
}

impl Failure {
    /// Another client holds the lock. The fields say which one.
    pub(super) fn busy(message: String, fields: Value) -> Self {
        let kind = "busy";
        Self {
            kind,
            message,
            fields,
        }
    }

    pub(super) fn cancelled() -> Self {
        let message = "the client has cancelled the call, and nothing is held by it".into();
        Self {
            kind: "cancelled",
            message,
            fields: json!({}),
        }
    }

    pub(super) fn ended() -> Self {
        let message = "the session of the client is over, and nothing is held by this call".into();
        Self {
            kind: "closed",
            message,
            fields: json!({}),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, cure) = match error.kind() {
            ErrorKind::WaitElapsed => ("busy", ""),
            ErrorKind::Lost => (
                "lost",
                "; end the work that needs the lock, and `take` it again",
            ),
            ErrorKind::Indeterminate => ("indeterminate", "; `list` says what is held"),
            ErrorKind::Unreachable => ("unreachable", ""),
            ErrorKind::Denied => ("denied", ""),
            ErrorKind::Invalid => ("invalid", ""),
            ErrorKind::Unsupported => ("unsupported", ""),
            ErrorKind::Closed => ("closed", ""),
            _ => ("store", ""),
        };
        Self {
            kind,
            message: format!("{error:#}{cure}"),
            fields: json!({}),
        }
    }
}

pub(super) fn result(outcome: Result<Answer, Failure>) -> CallToolResult {
    match outcome {
        Ok(Answer { text, fields }) => {
            let mut result = CallToolResult::structured(fields);
            result.content = vec![ContentBlock::text(text)];
            result
        }
        Err(Failure {
            kind,
            message,
            fields: mut error,
        }) => {
            error["kind"] = kind.into();
            error["message"] = message.as_str().into();
            let mut result = CallToolResult::structured_error(json!({ "error": error }));
            result.content = vec![ContentBlock::text(format!("{kind}: {message}"))];
            result
        }
    }
}

/// Wrong input, with the remedy.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message.into())
}

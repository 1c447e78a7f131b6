//! Receives the calls of the client.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelledNotificationParam, CustomRequest,
    CustomResult, ErrorCode, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tenure::name::Escaped;

use super::answer::{self, Answer, Failure};
use super::arguments::Arguments;
use super::session::Session;
use super::tools;
use super::{give_back, list, take, wait};

pub(super) struct Server {
    session: Arc<Session>,
}

impl Server {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// # Errors
    /// There is no such tool. Other mistakes are answers, which the client shows.
    async fn call(
        &self,
        tool: &str,
        arguments: Arguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Answer, Failure>, ErrorData> {
        let session = &*self.session;
        Ok(match tool {
            "take" => take::take(session, arguments, context).await,
            "renew" => give_back::renew(session, arguments).await,
            "release" => give_back::release(session, arguments).await,
            "list" => list::list(session, arguments).await,
            "wait" => wait::wait(session, arguments, context).await,
            _ => {
                let tool: String = tool.chars().take(60).collect();
                let message = format!(
                    "there is no tool \"{}\"; the tools are `{}`",
                    Escaped(&tool),
                    tools::NAMES.join("`, `")
                );
                return Err(ErrorData::invalid_params(message, None));
            }
        })
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let program = Implementation::new("tenure", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities)
            .with_server_info(program)
            .with_instructions(tools::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Arguments::new(request.arguments);
        let outcome = self.call(&request.name, arguments, &context).await?;
        Ok(answer::result(outcome).into())
    }

    /// The client did not wait for the answer, so what the call has taken is given back, also if the answer was on its way.
    async fn on_cancelled(
        &self,
        cancelled: CancelledNotificationParam,
        _: NotificationContext<RoleServer>,
    ) {
        if let Some(request) = cancelled.request_id {
            self.session.give_back(&request).await;
        }
    }

    /// The SDK does not know a method, or its parameters have another form.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let message =
                "the parameters of `tools/call` are `name`, a text, and `arguments`, an object";
            return Err(ErrorData::invalid_params(message, None));
        }
        let method: String = request.method.chars().take(60).collect();
        let message = format!("there is no method \"{}\"", Escaped(&method));
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
    }
}

//! Implements the command `leno mcp`: it offers the commands that only read to programs that use the Model Context
//! Protocol.
//!
//! ```text
//! client ── JSON-RPC over stdin, stdout ──► leno mcp ── one process a call ──► leno stat -o json ...
//! ```
//! A call runs the command that a person would type, as the same user. A call can therefore read only what this
//! user may read, and proxies log its taps in the same way. Only the commands in the table [`tools`] can be
//! called.

mod call;
mod tools;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use rmcp::ServiceExt as _;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};

use super::{AnyMesh, block_on};
use call::Caller;
use tools::TOOLS;

/// The instructions that clients get before their first call.
const INSTRUCTIONS: &str = "Reads a Leno service mesh and changes nothing in it. Begin with `why`, \
                            which lists what is broken. Then use `edges` and `routes` for figures, \
                            `explain` and `authz` for one request, and `tap` for live requests.";

/// Serves the commands that read a mesh as tools of the Model Context Protocol (MCP), over standard input and output
///
/// The tools are stat, edges, routes, why, explain, authz and tap. None of them changes anything. Each call runs the
/// command of that name as the user who started this command, with the rights of that user; a mesh of `leno up` needs
/// root. A call takes at most one minute, and its answer is at most 1 MiB. Runs until standard input is closed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno mcp\n  leno mcp --context prod\n  \
                        {\"mcpServers\": {\"leno\": {\"command\": \"sudo\", \"args\": [\"-n\", \"leno\", \"mcp\"]}}}")]
pub(crate) struct Mcp {
    #[command(flatten)]
    mesh: AnyMesh,
}

pub(crate) fn run(mcp: &Mcp) -> Result<bool> {
    let caller = Caller::new(&mcp.mesh)
        .context("cannot find the path of this program, which every call runs")?;
    block_on(async {
        let server = Server { caller: Arc::new(caller) };
        let running = server.serve(rmcp::transport::io::stdio()).await;
        // A client that closes the connection before its first message wants nothing.
        let Ok(running) = running else { return Ok(true) };
        running.waiting().await.context(
            "the MCP server has panicked: report this at the issue \
             tracker of Leno",
        )?;
        Ok(true)
    })
}

/// Answers the messages of one client.
#[derive(Clone)]
struct Server {
    caller: Arc<Caller>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("leno", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(|tool| tool.described()).collect()))
    }

    async fn call_tool(
        &self,
        asked: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == asked.name) else {
            let names = TOOLS.map(|tool| tool.name).join(", ");
            let text = format!("there is no tool {:?}: use one of {names}", asked.name);
            return Err(ErrorData::invalid_params(text, None));
        };
        let arguments = asked.arguments.unwrap_or_default();
        tokio::select! {
            answer = self.caller.call(tool, &arguments) => Ok(answer.into()),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
        }
    }
}

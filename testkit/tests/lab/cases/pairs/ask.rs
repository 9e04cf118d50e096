//! The outcome of a client's request to a destination.

use anyhow::{Context as _, Result};
use leno_testkit::lab::Lab;
use leno_testkit::peer::{Event, Step};

use super::generated::{Destination, MODES, OUTSIDE, Scheme};
use crate::cases::calls::peer;

/// How many bytes of a server's name are read; the shortest name has this length.
const NAME: usize = 7;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The server with this name answered.
    Served(String),
    /// A proxy answered. The texts are the status (of HTTP, or the name of gRPC's status) and the cause.
    Answered(String, String),
    /// There was no answer: the connection was refused, reset or closed.
    Nothing,
}

/// Calls a destination.
pub(super) fn ask(lab: &Lab, who: &str, to: &Destination) -> Result<CallOutcome> {
    let (host, port) = (to.host(), to.port);
    match to.scheme {
        Scheme::Http => web(lab, who, &["-s"], &format!("http://{host}:{port}/")),
        // The certificate itself is not tested here.
        Scheme::Https => web(lab, who, &["-s", "-k"], &format!("https://{host}:{port}/")),
        Scheme::Grpc => call(lab, who, &host, port),
        Scheme::Tcp => greeted(lab, who, &format!("{host}:{port}")),
    }
}

fn web(lab: &Lab, who: &str, options: &[&str], url: &str) -> Result<CallOutcome> {
    const FORMAT: &str = "%{http_code} %header{x-served-by} %header{leno-error}";
    let curl = ["-m", "20", "-o", "/dev/null", "-w", FORMAT, url];
    let output = lab.exec(who, &[&["curl"], options, &curl].concat())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (status, server, error) = parts(&text);
    Ok(match (&*status, &*server) {
        ("000", _) => CallOutcome::Nothing,
        (_, "") => CallOutcome::Answered(status, cause(&error)),
        _ => CallOutcome::Served(server),
    })
}

fn call(lab: &Lab, who: &str, host: &str, port: u16) -> Result<CallOutcome> {
    let peer = peer()?;
    let output = lab.exec(who, &[&peer, "one", host, &port.to_string(), "/t.Peer/Echo"])?;
    if !output.status.success() {
        return Ok(CallOutcome::Nothing);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (code, server, error) = parts(&text);
    Ok(match (&*server, &*error) {
        // Without a header of the mesh, this is the client's own error for a connection that ended.
        ("-", "-") => CallOutcome::Nothing,
        ("-", _) => CallOutcome::Answered(code, cause(&error)),
        _ => CallOutcome::Served(server),
    })
}

fn greeted(lab: &Lab, who: &str, address: &str) -> Result<CallOutcome> {
    // Fails if no connection is established.
    let Ok(said) = lab.talk(who, address, &[Step::Read(NAME)]) else {
        return Ok(CallOutcome::Nothing);
    };
    let text = said.events.iter().find_map(|event| match event {
        Event::Bytes { text, .. } => Some(text.as_str()).filter(|text| text.len() == NAME),
        _ => None,
    });
    let Some(text) = text else { return Ok(CallOutcome::Nothing) };
    let names = MODES.iter().map(|(mode, _)| format!("tcp-{mode}"));
    let mut names = names.chain([OUTSIDE.to_owned()]);
    let name = names.find(|name| name.starts_with(text));
    name.map(CallOutcome::Served).with_context(|| format!("no server is called {text:?}"))
}

/// The three words of a text. The last one may contain spaces.
fn parts(text: &str) -> (String, String, String) {
    let mut parts = text.splitn(3, ' ');
    let mut part = || parts.next().unwrap_or_default().trim().to_owned();
    (part(), part(), part())
}

/// The cause in a `leno-error`, without its parameters.
pub(super) fn cause(error: &str) -> String {
    error.split(';').next().unwrap_or_default().to_owned()
}

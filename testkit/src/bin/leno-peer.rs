//! `leno-peer`: the scripted peers as commands, to run as a workload or inside one.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Parser;
use leno_testkit::peer::{self, Backend, Behaviour, Faulty, FaultyAct, Step};

/// Scripted servers and clients for tests.
#[derive(Parser)]
#[command(name = "leno-peer", version)]
enum Command {
    /// Serve plain HTTP with switches in the query (see the crate's documentation)
    Http {
        #[command(flatten)]
        listen: Listen,
        /// The value of the header x-served-by in responses [default: the host name]
        #[arg(long)]
        name: Option<String>,
    },
    /// Serve plain HTTP and fail as scripted
    Faulty {
        /// Address to listen on
        #[arg(long)]
        listen: SocketAddr,
        /// Address that returns the requests received so far, one a line
        #[arg(long)]
        tell: SocketAddr,
        /// What to do with each request in turn: good, stall, cut, reset, close, garbage, bad-chunk,
        /// tunnel, forged, a status, after:MILLISECONDS
        #[arg(long, value_delimiter = ',', required = true)]
        acts: Vec<FaultyAct>,
    },
    /// Send back what the client sends
    Echo {
        #[command(flatten)]
        listen: Listen,
    },
    /// Send a greeting first, then send back what the client sends
    Banner {
        #[command(flatten)]
        listen: Listen,
        /// The greeting
        #[arg(long, default_value = "220 ready\r\n")]
        greeting: String,
    },
    /// Do nothing until killed
    Idle,
    /// Connect, follow a script, print the transcript as JSON
    Talk {
        /// host:port
        address: String,
        /// JSON list of steps, such as [{"send":"hi"},"read_to_end"]
        steps: String,
    },
}

#[derive(clap::Args)]
struct Listen {
    /// Address to listen on; may be repeated
    #[arg(long = "listen", required = true)]
    addresses: Vec<SocketAddr>,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Http { listen, name } => {
            let name = name.unwrap_or_else(host_name);
            serve(&listen, Backend { name }.into())
        }
        Command::Faulty { listen, tell, acts } => {
            let faulty = Faulty::start(listen, move |number| acts[number as usize % acts.len()])?;
            faulty.tell(tell)
        }
        Command::Echo { listen } => serve(&listen, Behaviour::Echo),
        Command::Banner { listen, greeting } => serve(&listen, Behaviour::Banner(greeting)),
        Command::Idle => loop {
            std::thread::park();
        },
        Command::Talk { address, steps } => {
            let steps: Vec<Step> = serde_json::from_str(&steps)?;
            println!("{}", serde_json::to_string(&peer::talk(&address, &steps)?)?);
            Ok(())
        }
    }
}

fn serve(listen: &Listen, behaviour: Behaviour) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(peer::serve(&listen.addresses, behaviour))
}

fn host_name() -> String {
    nix::unistd::gethostname().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

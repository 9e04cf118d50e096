//! The control plane that is measured: a separate process that serves an index, without a cluster.
//!
//! It reads commands from standard input, one per line, and answers on standard output: `change SERVICE NUMBER`
//! replaces a pod, `stats` prints the metrics in one line.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_identity::Authority;
use leno_index::{Index, MeshSettings as IndexSettings};
use leno_serve::{
    AnswerFuture, AuthenticationError, Authenticator, PlaneServer, PlaneState, ProvenIdentity,
    ServerSettings,
};
use leno_types::{Identity, InstanceName, TrustDomain};
use tokio::sync::watch;

use crate::mesh::{Mesh, Size};

/// Treats the text of a token as the name of its instance, so that no files are read for 2,000 tokens.
#[derive(Debug)]
struct NamesAsTokens;

impl Authenticator for NamesAsTokens {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        let instance: InstanceName = token.parse().unwrap();
        let proven = ProvenIdentity { identity: identity(&instance), instance: Some(instance) };
        Box::pin(std::future::ready(Ok(proven)))
    }

    fn identity_of<'a>(&'a self, instance: &'a InstanceName) -> AnswerFuture<'a, Option<Identity>> {
        Box::pin(std::future::ready(Some(identity(instance))))
    }
}

/// The identity of a pod. A pod's name begins with its service's name, which is also the name of its service
/// account.
fn identity(instance: &InstanceName) -> Identity {
    let account = instance.name.split('-').next().unwrap();
    Identity::new(TrustDomain::default(), &instance.namespace, account).unwrap()
}

/// Serves until standard input ends. The authority's roots are written to `roots`.
pub(crate) fn serve(size: Size, roots: &Path, threads: usize) {
    let begin = Instant::now();
    let mut mesh = Mesh::new(size);
    let objects = mesh.objects();
    let made = begin.elapsed();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.unwrap();
    let state = PlaneState::new(Index::new(IndexSettings::default()));
    state.apply(objects);
    let authority = Arc::new(Authority::ephemeral(&TrustDomain::default()).unwrap());
    std::fs::write(roots, authority.trust().roots_pem()).unwrap();
    let authenticator = Arc::new(NamesAsTokens);
    let settings = ServerSettings { authority, authenticator, lifetime: Duration::from_hours(1) };
    let (stop, stopped) = watch::channel(false);
    let bound = PlaneServer::bind("127.0.0.1:0".parse().unwrap(), settings, Arc::clone(&state));
    let server = runtime.block_on(bound).unwrap();
    let address = server.address();
    let running = runtime.spawn(server.run(stopped));
    println!("serving {address} {}", (begin.elapsed() - made).as_micros());
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        match words.next() {
            Some("change") => {
                let mut number = || words.next().unwrap().parse::<u32>().unwrap();
                let (service, generation) = (number() as usize, number());
                state.apply(mesh.replace(service, generation));
            }
            Some("stats") => println!("stats {}", stats(&state)),
            other => panic!("no such command: {other:?}"),
        }
    }
    stop.send_replace(true);
    runtime.block_on(running).unwrap().unwrap();
}

fn stats(state: &PlaneState) -> String {
    let mut text = String::new();
    state.render_metrics(&mut text);
    let is_count = |line: &&str| !line.starts_with('#') && !line.contains("_seconds");
    let numbers = text.lines().filter(is_count);
    numbers.map(|line| line.replacen(' ', "=", 1)).collect::<Vec<_>>().join(" ")
}

//! One hop in plaintext: throughput at saturation, and CPU per request at a fixed rate.

use anyhow::Result;

use crate::backend::Backends;
use crate::load::{Origin, Target};
use crate::measure::{self, Options, Subject};
use crate::process::Pinning;
use crate::proxy::{Contender, Proxy};

/// Runs all rounds with each of `proxies`. If `pin`, the proxy under test has one CPU and all other
/// processes have the others.
pub(crate) fn run(proxies: &[Contender], pin: bool, options: &Options) -> Result<()> {
    let (place, rest) =
        if pin { (Pinning::Proxy, Pinning::Rest) } else { (Pinning::Anywhere, Pinning::Anywhere) };
    // This thread starts the generators, which inherit its CPU affinity.
    rest.apply(0)?;
    let works = options.works();
    let backends = Backends::start(&works, rest)?;
    let mut records = Vec::new();
    let mut subjects = Vec::new();
    // Keeps the proxies alive: dropping one stops it.
    let mut running = Vec::new();
    for work in works {
        for contender in proxies {
            match Proxy::start(*contender, work, backends.address(work)?, place) {
                Ok(proxy) => {
                    let address = proxy.address.to_string();
                    let target = Target { origin: Origin::here(), address };
                    subjects.push(Subject {
                        bench: "http",
                        contender: *contender,
                        work,
                        version: proxy.version.clone(),
                        target,
                        pids: proxy.process.as_ref().map_or(Ok(vec![]), |it| it.pids())?,
                    });
                    running.push(proxy);
                }
                Err(why) => {
                    let missing = (*contender, work);
                    records.extend(measure::left_out("http", missing, options, &why));
                }
            }
        }
    }
    measure::rounds(&subjects, options, records)
}

//! An instance that a node proxy serves: its broker, and its membership of a group.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use leno_handover::Channel;
use leno_supervise::{Backoff, Happened, Rules, Running, Stop, after, describe, keep_running};
use tokio::sync::{mpsc, watch};

use super::{DRAIN_BOUND, InstanceResources, Life, proxy_label};
use crate::error::{Attempt, Result};
use crate::isolation::Isolation;
use crate::node::Group;
use crate::process::Event;
use crate::program::Program;

/// How the proxy of an instance in node mode ends.
const LOST: &str = "its process served it no more";

impl Life {
    /// Keeps the instance a member of its group; `ready` follows whether it is served.
    pub(super) async fn node_proxy(
        &self,
        place: &InstanceResources,
        group: &Rc<Group>,
        ready: watch::Sender<bool>,
    ) {
        let Self { mesh, instance, .. } = self;
        let label = proxy_label(instance);
        let name = format!("{} broker", instance.name);
        let origin = mesh.output.origin(&label, &name, &instance.workload);
        let (events, happened) = mpsc::unbounded_channel();
        let (lost, number) = (events.clone(), Cell::new(0));
        let start = move || -> Result<Running> {
            let what = || "cannot make a socket for orders".to_owned();
            let (near, far) = Channel::pair().attempt(what)?;
            let program = Program::prepare(&mesh.layout, "leno-proxy")?;
            let files = [place.files.as_slice(), &[program.file()]].concat();
            let isolation =
                Isolation::new(&place.proxy, &place.netns, &files, &instance.name.name)?;
            mesh.proxy.tokens.issue_at(instance, &group.token(&instance.name))?;
            let running =
                mesh.proxy.broker_task(&program, isolation, far).start(&mesh.output, &origin)?;
            number.set(number.get() + 1);
            group.join(instance, near, events.clone(), number.get());
            Ok(running)
        };
        let report = move |event: Event| match event {
            Event::Ended(status, wait) => {
                // The receiver ends with the instance.
                let _ending = lost.send(Happened::Lost);
                let (label, how) = (&instance.label, describe(status));
                let when = after(wait);
                self.say(&format!("the broker of {label} {how}; starting it again {when}"));
            }
            Event::Failed(error, _) => self.complain(&error),
            Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
        };
        let (stop_broker, stopped) = watch::channel(Stop::No);
        let rules = Rules::always(Backoff::eager(Instant::now()), DRAIN_BOUND);
        let broker = keep_running(start, rules, (stopped, Stop::All), report);
        // Connections out of the namespace need the broker, until what is under way has ended.
        let leaving = async {
            let (mut all, mut now) = (self.stop.clone(), self.stop.clone());
            // A sender that is gone is the end of the mesh.
            let _ = all.wait_for(|stop| *stop >= Stop::All).await;
            // Its broker ends when this is dropped.
            let _orders = tokio::select! {
                left = group.leave(&instance.name) => left,
                () = tokio::time::sleep(DRAIN_BOUND) => None,
                _ = now.wait_for(|stop| *stop >= Stop::Now) => None,
            };
            stop_broker.send_replace((*self.stop.borrow()).max(Stop::All));
        };
        tokio::select! {
            _ = async { tokio::join!(broker, leaving) } => {}
            // It has an end of its own where nothing can happen any more.
            () = self.watch_node(place, ready, happened) => {}
        }
    }

    async fn watch_node(
        &self,
        place: &InstanceResources,
        ready: watch::Sender<bool>,
        mut happened: mpsc::UnboundedReceiver<Happened>,
    ) {
        let (mut joins, mut joined) = (0_u32, false);
        loop {
            let event = tokio::select! {
                event = happened.recv() => event,
                () = self.until_ready(place), if joined && !*ready.borrow() => {
                    self.proxy_serves(true, joins, Some(LOST.to_owned())).await;
                    ready.send_replace(true);
                    continue;
                }
            };
            let Some(event) = event else { return };
            joined = event == Happened::Joined;
            joins += u32::from(joined);
            if !joined && ready.send_replace(false) {
                self.proxy_serves(false, joins, Some(LOST.to_owned())).await;
            }
        }
    }
}

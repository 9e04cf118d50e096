use std::cell::{Cell, RefCell};
use std::io;

use super::*;

/// A table that can simulate a kill before any of its steps.
#[derive(Default)]
struct CrashingTable {
    rows: RefCell<BTreeMap<FlowRequestKey, FlowRequests>>,
    /// How many steps are done before the kill.
    left: Cell<Option<usize>>,
}

impl CrashingTable {
    fn step(&self) -> Result<(), Error> {
        match self.left.get() {
            Some(0) => {
                let source = io::Error::other("killed");
                Err(Error::Io { action: "step".to_owned(), source })
            }
            left => {
                self.left.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }

    fn requests(&self) -> u64 {
        self.rows.borrow().values().map(|row| row.classes.iter().sum::<u64>()).sum()
    }
}

impl RequestTable for CrashingTable {
    fn set(&self, key: &FlowRequestKey, row: &FlowRequests) -> Result<(), Error> {
        self.step()?;
        self.rows.borrow_mut().insert(*key, *row);
        Ok(())
    }

    fn remove(&self, key: &FlowRequestKey) -> Result<(), Error> {
        self.step()?;
        self.rows.borrow_mut().remove(key);
        Ok(())
    }
}

fn counted(claim: u64, client: &str, requests: u64) -> RequestCounts {
    let mut classes = [0; CLASSES];
    classes[2] = requests;
    let labels = Labels {
        direction: "outbound",
        client,
        client_namespace: "shop",
        server: "cart",
        server_namespace: "shop",
        service: "cart",
        mtls: "true",
    };
    let labels = labels.to_text().unwrap();
    let durations = Histogram::default();
    RequestCounts { claim, labels, classes, grpc: [0; GRPC_STATUSES], durations }
}

#[test]
fn nothing_is_counted_twice_or_lost_wherever_the_process_is_killed() {
    for steps in 0..12 {
        let kept = CrashingTable::default();
        let mut requests = Requests::default();
        requests.take_in_worker(&kept, 1, &[counted(1, "web", 10), counted(2, "api", 5)]).unwrap();
        requests.take_in_worker(&kept, 2, &[counted(1, "web", 100)]).unwrap();
        kept.left.set(Some(steps));
        // One row is freed, and both workers end.
        let work = |requests: &mut Requests| {
            requests.take_in_worker(&kept, 1, &[counted(2, "api", 5)])?;
            requests.end_worker(&kept, 1)?;
            requests.end_worker(&kept, 2)
        };
        let was_killed = work(&mut requests).is_err();
        kept.left.set(None);
        // The next process only has the table.
        let mut next = Requests { rows: kept.rows.borrow().clone(), ..Requests::default() };
        next.finish_interrupted(&kept).unwrap();
        assert_eq!(kept.requests(), 115, "after {steps} steps");
        next.end_worker(&kept, 1).unwrap();
        next.end_worker(&kept, 2).unwrap();
        assert_eq!(kept.requests(), 115, "after {steps} steps");
        assert_eq!((kept.rows.borrow().len(), was_killed), (2, steps < 6));
        assert_eq!(*kept.rows.borrow(), next.rows);
    }
}

#[test]
fn pairs_that_have_ended_are_bounded() {
    let kept = CrashingTable::default();
    let mut requests = Requests::default();
    for memory in 1..=MAX_ENDED as u64 + 50 {
        let row = counted(1, &format!("client-{memory}"), 1);
        requests.take_in_worker(&kept, memory, &[row]).unwrap();
        requests.end_worker(&kept, memory).unwrap();
    }
    assert_eq!(requests.rows.len(), MAX_ENDED + 1);
    assert_eq!(kept.requests(), MAX_ENDED as u64 + 50);
}

#[test]
fn rows_that_are_not_of_the_form_are_left_out() {
    let kept = CrashingTable::default();
    let mut requests = Requests::default();
    let odd = RequestCounts { labels: "odd".to_owned(), ..counted(1, "web", 1) };
    requests.take_in_worker(&kept, 1, &[odd, counted(2, "web", 3)]).unwrap();
    assert_eq!((requests.left_out(), kept.requests()), (1, 3));
}

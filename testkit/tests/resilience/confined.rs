//! Tests the restrictions of a proxy that is not started by a supervisor.

use leno_testkit::proxy::every_thread_is_confined;

use crate::front::{FrontOptions, FrontProxy};

#[test]
fn every_thread_of_a_proxy_with_an_access_log_is_confined() {
    let server = ([127, 0, 0, 1], 9).into();
    let front = FrontProxy::outbound("  timeouts: {}\n", &[server], &FrontOptions::default());
    every_thread_is_confined(front.pid()).unwrap();
}

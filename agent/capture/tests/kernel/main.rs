//! Runs the same tests with every backend on the real kernel: a workload and an outside machine, each in a network
//! namespace, and a scripted proxy in its cgroup. Needs root. Without root a test reports that it is skipped, or
//! fails if `LENO_REQUIRE` contains `root`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![expect(unreachable_pub, reason = "nobody else can reach a test's modules")]

mod cases;
mod ebpf;
mod forged;
mod lab;
mod probe;
mod worker;

use leno_capture::Backend;

/// The process behind [`lab::Worker`]. Does nothing unless this process was started as one.
#[test]
fn worker() {
    worker::serve();
}

macro_rules! under_every_backend {
    ($($case:ident,)*) => {
        mod under_ebpf { $(#[test] fn $case() { super::run(super::Backend::Ebpf, super::cases::$case); })* }
        mod under_ebpf_by_user { $(#[test] fn $case() { super::run_by_user(super::cases::$case); })* }
        mod under_nftables { $(#[test] fn $case() { super::run(super::Backend::Nftables, super::cases::$case); })* }
        mod under_iptables { $(#[test] fn $case() { super::run(super::Backend::Iptables, super::cases::$case); })* }
    };
}

under_every_backend! {
    outbound_ipv4_keeps_the_original_destination,
    outbound_ipv6_keeps_the_original_destination,
    outbound_ipv4_mapped_keeps_the_original_destination,
    a_workload_of_one_family_alone_is_captured,
    a_source_address_that_the_application_chose_is_kept,
    a_connection_straight_to_a_listener_has_no_original_destination,
    listeners_that_share_a_port_share_the_connections,
    the_end_of_one_listener_leaves_the_others_at_work,
    listeners_that_are_shut_down_but_held_leave_the_others_at_work,
    more_listeners_than_are_kept_share_the_connections,
    the_proxys_own_connections_pass,
    loopback_is_left_alone,
    udp_is_left_alone,
    no_file_of_the_machine_is_needed_for_names,
    link_local_ipv6_has_no_way_past_the_proxy,
    an_excluded_link_local_prefix_passes,
    excluded_prefixes_pass,
    inbound_keeps_port_and_client_address,
    an_application_on_loopback_is_reached,
    the_application_sees_its_client_or_the_stand_in_address,
    only_the_proxy_names_clients,
    a_stand_in_address_from_outside_is_dropped,
    a_workload_that_calls_itself_does_not_loop,
    mesh_ports_cannot_be_reached_from_outside,
    the_admin_port_passes_inbound,
    fail_open_passes_while_no_proxy_listens,
    fail_closed_refuses_while_no_proxy_listens,
    a_killed_proxy_is_replaced,
    capturing_again_replaces_what_was_left,
    connections_that_are_open_stay_when_it_is_captured,
    connections_older_than_the_capture_are_listed_and_no_others,
    ways_are_open_to_processes_that_may_take_them,
    a_forged_packet_opens_no_way_past_the_proxy,
    a_connection_by_fast_open_is_captured,
    a_source_route_leads_around_no_proxy,
    release_leaves_nothing,
    no_original_destination_is_lost_in_a_race,
    an_upgrade_under_traffic_loses_nothing,
}

/// Runs a case, or skips it if this process is not root.
fn run(backend: Backend, case: fn(Backend)) {
    if lab::has_root() {
        case(backend);
    }
}

/// Runs a case with eBPF and a proxy that has no cgroup of its own when the workload is captured.
fn run_by_user(case: fn(Backend)) {
    lab::BY_USER.set(true);
    run(Backend::Ebpf, case);
}

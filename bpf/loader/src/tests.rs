//! Compares the layouts and names of Rust with the BTF of the objects, and runs the decisions with `BPF_PROG_TEST_RUN`.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;

use leno_bpf_abi::flow::{self, FLOW_LAYOUTS, FLOW_SETTINGS, FLOW_TOTALS};
use leno_bpf_abi::{CaptureConfig, Counter, Field, LAYOUTS, Layout, Slot, SocketAddress};
use libbpf_rs::btf::types::{Enum, MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize, TypeId};
use libbpf_rs::{Program, ProgramInput, ProgramMut};

use crate::object;

const DECISIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/decisions.bpf.o"));

fn btf(object: &'static [u8]) -> Btf<'static> {
    Btf::from_raw("leno", object).unwrap().expect("the object has BTF")
}

fn size_of_type(btf: &Btf<'_>, id: TypeId) -> usize {
    if let Some(array) = btf.type_by_id::<libbpf_rs::btf::types::Array<'_>>(id) {
        return array.capacity() * size_of_type(btf, array.ty());
    }
    let mut plain = btf.type_by_id::<libbpf_rs::btf::BtfType<'_>>(id).unwrap();
    plain = plain.skip_mods_and_typedefs();
    if let Some(part) = btf.type_by_id::<Struct<'_>>(plain.type_id()) {
        return part.size();
    }
    match btf.type_by_id::<libbpf_rs::btf::types::Int<'_>>(plain.type_id()) {
        Some(int) => usize::from(int.bits) / 8,
        None => panic!("{plain:?} is neither an array, a structure nor an integer"),
    }
}

#[test]
fn structures_have_the_same_layout_in_c_and_rust() {
    assert_same(crate::OBJECT, LAYOUTS);
    assert_same(crate::FLOWS_OBJECT, FLOW_LAYOUTS);
}

fn assert_same(object: &'static [u8], layouts: &[Layout]) {
    let btf = btf(object);
    // Records of a ring buffer are not the value of a map, so BTF does not have their types. The kernel tests of
    // leno-flows read them.
    let are_records = ["flow_event", "flow_sample"];
    for layout in layouts.iter().filter(|layout| !are_records.contains(&layout.name)) {
        let in_c: Struct<'_> = btf.type_by_name(layout.name).expect(layout.name);
        assert_eq!(in_c.size(), layout.size, "{}", layout.name);
        let names: Vec<String> =
            in_c.iter().map(|m| m.name.unwrap().to_string_lossy().into_owned()).collect();
        let fields: Vec<Field> = in_c
            .iter()
            .zip(layout.fields)
            .map(|(member, field)| {
                let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field") };
                let offset = offset as usize / 8;
                Field { name: field.name, offset, size: size_of_type(&btf, member.ty) }
            })
            .collect();
        assert_eq!(names, layout.fields.iter().map(|f| f.name).collect::<Vec<_>>());
        assert_eq!(fields, layout.fields, "{}", layout.name);
    }
}

fn assert_enumerates(object: &'static [u8], name: &str, end: &str, names: &[&str]) {
    let btf = btf(object);
    let in_c: Enum<'_> = btf.type_by_name(name).expect(name);
    let mut expected: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    expected.push(end.to_owned());
    let found: Vec<String> =
        in_c.iter().map(|m| m.name.unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(found, expected);
    for (index, member) in in_c.iter().enumerate() {
        assert_eq!(member.value, i64::try_from(index).unwrap());
    }
}

#[test]
fn counters_and_slots_have_the_same_order_in_c_and_rust() {
    let counters: Vec<&str> = Counter::ALL.iter().map(|c| c.name()).collect();
    assert_enumerates(crate::OBJECT, "counter", "COUNTERS", &counters);
    let slots: Vec<&str> = Slot::ALL.iter().map(|s| s.name()).collect();
    assert_enumerates(crate::OBJECT, "listener_slot", "LISTENER_SLOTS", &slots);
    assert_enumerates(crate::FLOWS_OBJECT, "flow_total", "FLOW_TOTALS", FLOW_TOTALS);
    assert_enumerates(crate::FLOWS_OBJECT, "flow_setting", "FLOW_SETTINGS", FLOW_SETTINGS);
    let samples = flow::FLOW_SAMPLE_COUNTS;
    assert_enumerates(crate::FLOWS_OBJECT, "flow_sample_count", "FLOW_SAMPLE_COUNTS", samples);
}

#[test]
fn maps_have_the_bounds_of_the_abi() {
    let object = object::open(crate::OBJECT).unwrap();
    let bound = |name: &str| {
        object.maps().find(|m| m.name() == OsStr::new(name)).map(|m| m.max_entries()).expect(name)
    };
    assert_eq!(bound("inflight"), leno_bpf_abi::MAX_INFLIGHT);
    assert_eq!(bound("arriving"), leno_bpf_abi::MAX_INFLIGHT);
    assert_eq!(bound("targets"), leno_bpf_abi::MAX_DATAGRAM_TARGETS);
    assert_eq!(bound("excluded") as usize, leno_bpf_abi::MAX_EXCLUDED);
    assert_eq!(bound("counters") as usize, Counter::ALL.len());
    let slots = u32::try_from(Slot::ALL.len()).unwrap();
    assert_eq!(bound("listeners"), slots * leno_bpf_abi::LISTENERS_PER_SLOT);
    for name in object::PINNED_MAPS {
        bound(name);
    }
}

#[test]
fn maps_of_flows_have_the_bounds_of_the_abi() {
    let object = object::open(crate::FLOWS_OBJECT).unwrap();
    let bound = |name: &str| {
        object.maps().find(|m| m.name() == OsStr::new(name)).map(|m| m.max_entries()).expect(name)
    };
    assert_eq!(bound("pairs"), flow::MAX_FLOW_PAIRS);
    assert_eq!(bound("requests"), flow::MAX_FLOW_REQUESTS);
    assert_eq!(bound("wire_requests"), flow::MAX_FLOW_WIRE_REQUESTS);
    assert_eq!(bound("workloads"), flow::MAX_FLOW_WORKLOADS);
    assert_eq!(bound("names"), flow::MAX_FLOW_WORKLOADS);
    assert_eq!(bound("addresses"), flow::MAX_FLOW_ADDRESSES);
    assert_eq!(bound("totals") as usize, FLOW_TOTALS.len());
    assert_eq!(bound("runs"), flow::MAX_FLOW_IDS);
    assert_eq!(bound("caps"), flow::MAX_FLOW_IDS);
    assert_eq!(bound("drops"), flow::MAX_FLOW_DROPS);
}

/// Whether this process is root; a skip fails if `LENO_REQUIRE` names root.
pub(crate) fn has_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        assert!(
            !std::env::var("LENO_REQUIRE").is_ok_and(|require| require.contains("root")),
            "needs root"
        );
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn the_kernel_verifies_every_program() {
    if has_root() {
        crate::probe().unwrap();
        crate::flows::probe().unwrap();
    }
}

/// Most instructions that the verifier may follow for a program. The verifier stops at a million, and the paths that it
/// follows differ between kernels. The programs that run for every frame are the longest, with 13,237 on Linux 6.1.
const MAX_VERIFIED: u32 = 20_000;

#[test]
fn the_verifier_follows_few_instructions_of_each_program() {
    if !has_root() {
        return;
    }
    let flows = object::verify(crate::flows::open_programs(true, 0).unwrap()).unwrap();
    let capture = object::load(object::WIDEST, None).unwrap();
    let sources = crate::sources::load(Ipv4Addr::LOCALHOST, None).unwrap();
    let all = flows.progs().chain(capture.progs()).chain(sources.progs());
    for program in all.filter(|one| one.autoload()) {
        let id = Program::id_from_fd(program.as_fd()).unwrap();
        let followed = crate::hooks::verified_instructions(id);
        eprintln!("{}: {followed}", program.name().to_string_lossy());
        // 0 before Linux 5.16, which does not report it.
        assert!(followed <= MAX_VERIFIED, "{:?}: {followed}", program.name());
    }
}

fn address(text: &str) -> SocketAddress {
    let address: std::net::SocketAddr = text.parse().unwrap();
    SocketAddress::new(address.ip(), address.port())
}

fn decide(program: &ProgramMut<'_>, remote: &str, local: &str) -> u32 {
    let config = CaptureConfig {
        outbound_port: 15001,
        inbound_port: 15006,
        admin_port: 15020,
        ..CaptureConfig::default()
    };
    let mut case = config.to_bytes().to_vec();
    case.extend(address(remote).to_bytes());
    case.extend(address(local).to_bytes());
    let input = ProgramInput { data_in: Some(&case), ..ProgramInput::default() };
    program.test_run(input).unwrap().return_value
}

#[test]
fn inbound_decisions() {
    if !has_root() {
        return;
    }
    let object = object::verify(object::open(DECISIONS).unwrap()).unwrap();
    let program = object.progs_mut().find(|p| p.name() == "decide_inbound").unwrap();
    const STEER: u32 = 0;
    const LOCAL: u32 = 1;
    const ADMIN: u32 = 2;
    const MESH_PORT: u32 = 3;
    const LINK_LOCAL: u32 = 4;
    for (remote, local, verdict) in [
        ("10.89.0.2:4000", "10.89.0.3:80", STEER),
        ("10.89.0.2:4000", "10.89.0.3:15001", MESH_PORT),
        ("10.89.0.2:4000", "10.89.0.3:15006", MESH_PORT),
        ("10.89.0.2:4000", "10.89.0.3:15020", ADMIN),
        ("10.89.0.3:4000", "10.89.0.3:80", LOCAL),
        ("10.89.0.3:4000", "10.89.0.3:15006", LOCAL),
        ("127.0.0.1:4000", "127.0.0.1:80", LOCAL),
        ("10.89.0.3:4000", "127.0.0.1:15001", LOCAL),
        ("127.0.0.1:4000", "10.89.0.3:15001", LOCAL),
        ("[fd89::2]:4000", "[fd89::3]:80", STEER),
        ("[fd89::2]:4000", "[fd89::3]:15006", MESH_PORT),
        ("[fd89::3]:4000", "[fd89::3]:80", LOCAL),
        ("[::1]:4000", "[::1]:80", LOCAL),
        ("[fd89::3]:4000", "[::1]:15001", LOCAL),
        ("192.0.0.8:4000", "10.89.0.3:80", LOCAL),
        ("192.0.0.9:4000", "10.89.0.3:80", STEER),
        ("[100:0:0:1::8]:4000", "[fd89::3]:80", LOCAL),
        ("[100::8]:4000", "[fd89::3]:80", STEER),
        ("[fe80::2]:4000", "[fe80::3]:80", LINK_LOCAL),
        ("[fe80::2]:4000", "[fe80::3]:15020", LINK_LOCAL),
        ("[fd89::2]:4000", "[fe80::3]:80", LINK_LOCAL),
        ("[fe80::2]:4000", "[fd89::3]:80", STEER),
        ("[fe80::3]:4000", "[fe80::3]:80", LOCAL),
        ("[fe80::2]:4000", "[fe80::3]:15001", MESH_PORT),
    ] {
        assert_eq!(decide(&program, remote, local), verdict, "{remote} -> {local}");
    }
}

#[test]
fn outbound_decisions() {
    if !has_root() {
        return;
    }
    let object = object::verify(object::open(DECISIONS).unwrap()).unwrap();
    let program = object.progs_mut().find(|p| p.name() == "decide_outbound").unwrap();
    const STEER: u32 = 0;
    const LOCAL: u32 = 1;
    const LINK_LOCAL: u32 = 2;
    for (to, verdict) in [
        ("10.96.0.1:80", STEER),
        ("[::ffff:10.96.0.1]:80", STEER),
        ("[fd96::1]:80", STEER),
        ("127.0.0.1:80", LOCAL),
        ("127.5.5.5:80", LOCAL),
        ("0.0.0.0:80", LOCAL),
        ("[::]:80", LOCAL),
        ("[::1]:80", LOCAL),
        ("[::ffff:127.0.0.1]:80", LOCAL),
        ("[::ffff:0.0.0.0]:80", LOCAL),
        ("[fe80::1]:80", LINK_LOCAL),
        ("[febf::1]:80", LINK_LOCAL),
        ("169.254.169.254:80", STEER),
    ] {
        assert_eq!(decide(&program, to, to), verdict, "{to}");
    }
}

#[test]
fn only_frames_from_an_own_address_pass() {
    if !has_root() {
        return;
    }
    let (own4, own6) = (Ipv4Addr::new(10, 89, 0, 2), "fd89::2".parse::<Ipv6Addr>().unwrap());
    let frame = |kind: u16, before: usize, from: &[u8]| {
        let mut frame = vec![2; 12];
        frame.extend(kind.to_be_bytes());
        frame.extend(vec![0; before]);
        frame.extend(from);
        frame.extend([7; 40]);
        frame
    };
    let v4 = |text: &str| frame(0x0800, 12, &text.parse::<Ipv4Addr>().unwrap().octets());
    let arp = |text: &str| frame(0x0806, 14, &text.parse::<Ipv4Addr>().unwrap().octets());
    let v6 = |text: &str| frame(0x86dd, 8, &text.parse::<Ipv6Addr>().unwrap().octets());
    let cases = [
        (v4("10.89.0.2"), true),
        (v4("10.89.0.3"), false),
        (v4("10.89.0.1"), false),
        (v4("0.0.0.0"), false),
        (arp("10.89.0.2"), true),
        (arp("10.89.0.3"), false),
        (v6("fd89::2"), true),
        (v6("fd89::3"), false),
        (v6("fd89::"), false),
        (v6("::1"), false),
        (v6("::ffff:10.89.0.2"), false),
        (v6("fe80::3"), true),
        (v6("fec0::3"), false),
        (v6("::"), true),
        // One frame that is not IP, and one that ends within an address. The kernel runs no test with an incomplete IP
        // header.
        (frame(0x88b5, 12, &[10, 89, 0, 3]), true),
        (arp("10.89.0.2")[..31].to_vec(), false),
    ];
    const NEXT: u32 = u32::MAX;
    const DROPPED: u32 = 2;
    for (own6, has_ipv6) in [(Some(own6), true), (None, false)] {
        let object = crate::sources::load(own4, own6).unwrap();
        let program = object.progs_mut().next().unwrap();
        for (frame, passes) in &cases {
            let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
            let verdict = program.test_run(input).unwrap().return_value;
            let is_own6 = frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(22) == Some(&0xfd);
            let expected = if *passes && (has_ipv6 || !is_own6) { NEXT } else { DROPPED };
            assert_eq!(verdict, expected, "{has_ipv6} {frame:02x?}");
        }
    }
}

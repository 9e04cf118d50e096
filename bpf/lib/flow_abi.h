// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The constants and structures of the flow programs that user space shares. leno_bpf_abi::flow
 * mirrors them in Rust, and the loader's layout test compares the two through BTF.
 */
#ifndef LENO_FLOW_ABI_H
#define LENO_FLOW_ABI_H

#include <linux/types.h>

/* A connection of a workload, seen from that workload's socket.
 *
 *   connect() ─► NEW ─► ESTABLISHED ─► CLOSING ─► CLOSED
 *                 │        ▲      └───────────────▲ (reset)
 *                 │        └─ accept               │
 *                 └────────────────────────────────┘ (refused, timed out)
 */
enum flow_state {
	FLOW_NEW,
	FLOW_ESTABLISHED,
	FLOW_CLOSING,
	FLOW_CLOSED,
	FLOW_STATES,
};

/* How a connection ended, and which side ended it. */
enum flow_end {
	END_OPEN,
	END_CLOSED_LOCAL,
	END_CLOSED_REMOTE,
	END_RESET_LOCAL,
	END_RESET_REMOTE,
	END_TIMED_OUT,
	END_REFUSED,
	FLOW_ENDS,
};

enum flow_role {
	ROLE_CLIENT,
	ROLE_SERVER,
	FLOW_ROLES,
};

/* Which program of the workload has the socket, or that frames are counted instead of a socket. */
enum flow_owner {
	OWNER_APPLICATION,
	OWNER_PROXY,
	OWNER_WIRE,
	FLOW_OWNERS,
};

/* Peers that are no workload. */
enum flow_peer {
	PEER_OUTSIDE,       /* an address that belongs to no workload */
	PEER_SELF,          /* loopback, or an address of the workload itself */
	PEER_CONTROL_PLANE, /* the mesh's discovery service */
	FLOW_PEERS,         /* the first id of a workload */
};

/* Fixed when the programs are loaded. */
struct flow_config {
	__u8 carries_over;   /* the table is being resized: `flows_before` has entries */
	__u8 netns_by_inode; /* the kernel has no cookies of network namespaces (before 5.14) */
	__u8 drop_names_socket; /* kfree_skb names the socket that a packet was for (since 6.11) */
	__u8 reserved;
	__u32 turn; /* drops are counted while `drop_turn` has this number */
};

/* Value of `workloads`, whose key is the cookie of a network namespace, or its inode if the kernel has no
 * cookies.
 */
struct flow_workload {
	__u32 id;
	__u32 proxy_uid; /* sockets of this user are the proxy's */
};

/* Key of `addresses`: an address in IPv4-mapped or IPv6 form, and a port, or 0 for all others of the
 * address. The value is what is there: an id of a workload, or PEER_CONTROL_PLANE.
 */
struct flow_address {
	__be32 ip[4];
	__u32 port;
};

/* The programs that run for a workload, as `runs` counts them. */
enum flow_program {
	PROGRAM_SOCKOPS,
	PROGRAM_SENT,
	PROGRAM_RECEIVED,
	PROGRAM_DROP,
	FLOW_PROGRAMS,
};

/* Value of `runs`, whose index is the workload's id: how often each program has accounted for something of it. */
struct flow_runs {
	__u64 of[4]; /* by enum flow_program */
};

/* Value of `caps`, whose index is the workload's id; all zero without a bound of its own. */
struct flow_cap {
	__u32 level;  /* enum flow_level: it has the lesser one of this and FLOW_LEVEL */
	__u32 budget; /* as FLOW_BUDGET */
	__u32 cost;   /* its part of what was measured last, as FLOW_COST */
	__u32 samples; /* at the level FULL payload of its frames is sampled: 1 or 0 */
};

/* Key of `drops`, whose value counts packets. {0, 0} is of those that found no room. */
struct flow_drop {
	__u32 workload;
	__u32 reason; /* enum skb_drop_reason of the kernel that runs */
};

/* Value of `names`, whose key is the workload's id; unused bytes are zero. */
struct flow_name {
	char namespace[64];
	char workload[64];
};

/* Of OWNER_WIRE, in `marks` of a flow: what its frames have had. */
#define MARK_SEQUENCE 1     /* `pass` is the sequence number after the last byte that was sent */
#define MARK_SYN_ANSWERED 2 /* with SYN and ACK */
#define MARK_ESTABLISHED 4
#define MARK_FIN_SENT 8
#define MARK_FIN_RECEIVED 16
#define MARK_ENDED 32

/* The parts of `sent` and `received` of a flow: bytes, and above them a port. */
#define FLOW_PORT_SHIFT 48
#define FLOW_BYTES_MASK ((1ull << FLOW_PORT_SHIFT) - 1)
/* From here on no more is added to them, or to `retransmits`: both stay below what they are stored in. */
#define FLOW_MOST_BYTES (FLOW_BYTES_MASK - (1ull << 40))
#define FLOW_MOST_RETRANSMITS 0xe000
/* Most segments that one frame adds to `retransmits` of its flow: 64 KiB in segments of 1,448 bytes are 46. */
#define FLOW_MOST_SEGMENTS 64

/* The parts of `phase` of a flow: enum flow_state, and above it enum flow_end, enum flow_role and enum flow_owner. */
#define FLOW_STATE_MASK 3
#define FLOW_END_SHIFT 2
#define FLOW_END_MASK 7
#define FLOW_ROLE_SHIFT 5
#define FLOW_OWNER_SHIFT 6

/* The parts of `family` of a flow: AF_INET or AF_INET6, and above it, of samples, which side's payload came last: 1 sent,
 * 2 received; 0 before any.
 */
#define FLOW_FAMILY_MASK 63
#define FLOW_TALKER_SHIFT 6

/* Times of a flow in 16 bits: below this number microseconds, from it on with it units of 1,024 us, up to 33 s. */
#define FLOW_LONG_TIME 0x8000

/* Value of `flows`. The key is the cookie of the socket; of OWNER_WIRE, a number made of the workload, the protocol and
 * both ends, with the highest bit, which no cookie has.
 *
 * The kernel may keep a million of them, so it has 80 bytes, and not the 112 of fields of their own
 * (docs/decisions/174-the-cost-of-flows-as-the-kernel-times-it.md).
 */
struct flow {
	__be32 remote_ip[4];
	__u64 opened_ns; /* times are of CLOCK_MONOTONIC */
	__u64 last_ns;   /* when it changed state last, or was last seen to have moved bytes */
	__u64 sent;      /* bytes; above them the workload's port */
	__u64 received;  /* bytes; above them the port of the other side */
	__u32 local;     /* the workload's address: of IPv4 as it is, of IPv6 its key in `locals` */
	__u32 segments_sent;
	__u32 segments_received;
	__u32 pass; /* the last pass of the iterator that found the socket; see MARK_SEQUENCE */
	__u16 workload;
	__u16 peer;
	__u16 retransmits; /* see FLOW_MOST_RETRANSMITS */
	__u16 rtt;         /* smoothed; see FLOW_LONG_TIME */
	__u16 min_rtt;     /* of the kernel's window, five minutes by default */
	__u16 handshake;   /* client: connect to established; server: SYN-ACK to ACK */
	__u8 phase;
	__u8 protocol; /* IPPROTO_*; 0 in what an earlier version wrote, and in frames that are not IP */
	__u8 marks;    /* OWNER_WIRE: MARK_* */
	__u8 family;
};

/* Value of `locals`: an IPv6 address that a workload has. */
struct flow_local {
	__be32 ip[4];
};

/* Key of `pairs`. */
struct flow_pair {
	__u32 workload;
	__u32 peer;
	__u8 role;
	__u8 owner;
	__u8 protocol; /* OWNER_WIRE: IPPROTO_*; else 0, which is TCP */
	__u8 reserved;
};

/* Value of `pairs`: the sums over all flows of a pair. */
struct flow_sums {
	__u64 bytes_sent;
	__u64 bytes_received;
	__u64 segments_sent;
	__u64 segments_received;
	__u64 retransmits;
	__u64 opened;       /* connections that were begun or accepted */
	__u64 established;  /* of those, the ones that were established */
	__u64 handshake_us; /* over `established` */
	__u64 rtt_us;       /* smoothed, over `rtt_samples` */
	__u64 rtt_samples;  /* established connections that have ended */
	__u64 duration_us;  /* of connections that have ended */
	__u64 ended[8];     /* by enum flow_end */
};

/* Key of `requests`: a row of what a proxy counts. */
struct flow_request_key {
	__u64 memory; /* of which worker of which proxy; 0: of proxies that have ended */
	__u64 claim;  /* which row of it; of memory 0 a number made of the labels */
};

/* Value of `requests`: the requests between a client and a server, as one worker of one proxy has counted them. No program
 * writes it: the process that enrols copies it from the memory of proxies.
 */
struct flow_requests {
	char labels[512];    /* separated by zeroes, with those of leno_requests_total; unused bytes are zero */
	__u64 classes[6];    /* by the class of the status; 0 for those of no class */
	__u64 grpc[18];      /* calls by their grpc-status; the last one for all others */
	__u64 duration_us;
	__u64 durations[32]; /* by duration: leno_requests::BUCKET_BOUNDS_S */
	__u64 folded_memory; /* of memory 0: the row that was added to it last */
	__u64 folded_claim;
};

/* Bytes of payload that a sample has at most: heads of HTTP/1, small frames of HTTP/2, commands, queries. */
#define FLOW_SAMPLE_BYTES 512

/* The begin of the payload of a frame, in `samples`: of the first one after the other side has spoken, and of each that is
 * whole in a sample.
 */
struct flow_sample {
	__u64 key;       /* in `flows` */
	__u64 at_ns;     /* CLOCK_MONOTONIC */
	__u64 opened_ns; /* with `key` tells connections apart that have the same ports one after another */
	__u32 workload;
	__u32 peer;
	__u32 sequence; /* TCP: the number of the first byte */
	__u32 payload;  /* how many bytes the frame has */
	__u16 local_port;
	__u16 remote_port;
	__u16 length; /* how many of them are in `bytes` */
	__u8 role;
	__u8 protocol; /* IPPROTO_* */
	__u8 sent;     /* by the workload: 1; received: 0 */
	__u8 turns;    /* the other side's payload came before: 1 */
	__u8 reserved[6];
	__u8 bytes[FLOW_SAMPLE_BYTES]; /* those after `length` are of no meaning */
};

/* Index into `sample_counts`. */
enum flow_sample_count {
	FLOW_SAMPLES_WRITTEN,
	FLOW_SAMPLES_LOST, /* `samples` was full, or the flow is not in the table */
	FLOW_SAMPLE_COUNTS,
};

/* Key of `wire_requests`: what was read from samples. */
struct flow_wire_key {
	__u32 workload; /* 0: of rows that found no room */
	__u32 peer;
	__u8 role;
	__u8 protocol; /* a number of leno_flows */
	__u8 reserved[6];
	char kind[16];   /* of request, for example GET; unused bytes are zero */
	char result[16]; /* for example 2xx */
};

/* Value of `wire_requests`. No program writes it: the process that enrols does. */
struct flow_wire_requests {
	__u64 requests;      /* all, of which those with a duration are in `durations` */
	__u64 duration_us;   /* from the first byte of the request to that of the response */
	__u64 durations[32]; /* by duration: leno_requests::BUCKET_BOUNDS_S */
};

/* A change of a flow, in `events`. */
struct flow_event {
	__u64 cookie;
	__u64 at_ns;
	struct flow flow;
};

/* Index into `control`. Each is written by itself: readers and followers do not overwrite each other. */
enum flow_setting {
	FLOW_FOLLOWED, /* a reader waits for events */
	FLOW_PASS,     /* the number of the iterator's pass */
	FLOW_LEVEL,    /* enum flow_level */
	FLOW_BUDGET,   /* most CPU that the programs may take, in millionths of the machine's; 0: no bound */
	FLOW_COST,     /* what they took when it was measured last, in the same unit */
	FLOW_SETTINGS,
};

/* How much is accounted for: less where that costs more than its budget. */
enum flow_level {
	LEVEL_FULL,
	LEVEL_AGGREGATED, /* sums of pairs alone: connections that begin are not listed */
	LEVEL_OFF,        /* connections that begin are not accounted for */
	LEVEL_SOCKETS,    /* full, but frames are not counted: sockets stand in for them */
	LEVEL_PACKETS,    /* full, but payload of frames is not sampled */
	FLOW_LEVELS,
};

/* Index into `totals`. */
enum flow_total {
	FLOW_ADDED,          /* entries made in `flows` */
	FLOW_UNLISTED,       /* flows for which `flows` had no entry left */
	FLOW_UNTRACKED,      /* connections without storage: the kernel had no memory */
	FLOW_FOLDED,         /* flows of pairs that `pairs` had no room for */
	FLOW_EVENTS_WRITTEN,
	FLOW_EVENTS_DROPPED, /* `events` was full */
	FLOW_AGGREGATED,     /* connections that are not in `flows` because of the level */
	FLOW_LEFT_OUT,       /* connections that are not accounted for because of the level */
	FLOW_REMOVED,        /* entries of `flows` that user space removed; only it writes this */
	FLOW_TOTALS,
};

/* Workloads of one machine with a network namespace of their own: a kubelet runs 110 pods unless
 * configured otherwise, and Linux 65,536 namespaces at most.
 */
#define MAX_FLOW_WORKLOADS 8192

/* Ids of workloads: the ids of names, from FLOW_PEERS on. */
#define MAX_FLOW_IDS (MAX_FLOW_WORKLOADS + FLOW_PEERS)

/* Pairs of a workload and a reason: a kernel has some 120 reasons, and a workload meets few. */
#define MAX_FLOW_DROPS 4096

/* Interfaces whose frames are counted: one for each workload. */
#define MAX_FLOW_PORTS MAX_FLOW_WORKLOADS

/* IPv6 addresses of workloads in the table, those that were used last: a workload has one of its own, and some of links. */
#define MAX_FLOW_LOCALS 4096

/* Two addresses for each. */
#define MAX_FLOW_ADDRESSES 16384

/* Pairs that are added up each by itself: with 2 roles and 2 owners, 4,096 edges. Memory is taken when a
 * pair is first seen. Flows of further pairs are added to the pair {0, 0} of their role and owner.
 */
#define MAX_FLOW_PAIRS 16384

/* Rows of proxies that run, and those of proxies that have ended: at 1 KiB each, taken when a row is first seen. */
#define MAX_FLOW_REQUESTS 16384

/* Rows of what was read from samples: a workload has few pairs, kinds and results of each protocol. */
#define MAX_FLOW_WIRE_REQUESTS 4096

#endif

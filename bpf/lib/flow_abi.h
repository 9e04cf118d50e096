// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The constants and structures that the flow programs share with user space. leno_bpf_abi::flow mirrors them in Rust,
 * and the loader's layout test compares the two through BTF.
 */
#ifndef LENO_FLOW_ABI_H
#define LENO_FLOW_ABI_H

#include <linux/types.h>

/* The state of a flow: a connection of a workload, or of other protocols the packets between the same two ends, as that
 * workload's side sees it.
 *
 *   NEW ──► ESTABLISHED ──► CLOSING ──► CLOSED
 *    │           │                        ▲
 *    └───────────┴─ reset, refused, ──────┘
 *                   or timed out
 *
 * An accepted connection is NEW only for a moment. Flows of other protocols than TCP stay ESTABLISHED.
 */
enum flow_state {
	FLOW_NEW,
	FLOW_ESTABLISHED,
	FLOW_CLOSING,
	FLOW_CLOSED,
	FLOW_STATES,
};

/* How a connection ended, and by which side. END_OPEN: it has not ended. */
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

/* Who owns the socket; OWNER_WIRE: the flow is of frames at the workload's interface, so its owner is not known. */
enum flow_owner {
	OWNER_APPLICATION,
	OWNER_PROXY,
	OWNER_WIRE,
	FLOW_OWNERS,
};

/* Values of `peer` that are not the id of a workload. */
enum flow_peer {
	PEER_OUTSIDE,       /* an address that belongs to no workload */
	PEER_SELF,          /* loopback, or an address of the workload itself */
	PEER_CONTROL_PLANE, /* the mesh's discovery service */
	FLOW_PEERS,         /* the first id of a workload */
};

/* Configuration of the programs, fixed when they are loaded. */
struct flow_config {
	__u8 carries_over;   /* the table is being resized: `flows_before` still has entries */
	__u8 netns_by_inode; /* the kernel has no cookies of network namespaces (before 5.14) */
	__u8 drop_names_socket; /* kfree_skb names the socket that a packet was for (since 6.11) */
	__u8 reserved;
	__u32 turn; /* this program counts drops only while `drop_turn` has this number */
};

/* Value of `workloads`. The key is the cookie of the workload's network namespace, or its inode number if the kernel
 * has no cookies of namespaces.
 */
struct flow_workload {
	__u32 id;
	__u32 proxy_uid; /* sockets of this user are the proxy's */
};

/* Key of `addresses`: an address in IPv4-mapped or IPv6 form and a port. Port 0 stands for all ports of the address
 * that have no entry of their own. The value is the id of the workload that has the address, or PEER_CONTROL_PLANE.
 */
struct flow_address {
	__be32 ip[4];
	__u32 port;
};

/* The programs whose runs are counted by workload in `runs`. */
enum flow_program {
	PROGRAM_SOCKOPS,
	PROGRAM_SENT,
	PROGRAM_RECEIVED,
	PROGRAM_DROP,
	FLOW_PROGRAMS,
};

/* Value of `runs`, whose index is the workload's id: how often each program has accounted for something of this
 * workload.
 */
struct flow_runs {
	__u64 of[4]; /* by enum flow_program */
};

/* Value of `caps`, whose index is the workload's id: the limits of this workload. All fields are zero if it has none.
 */
struct flow_cap {
	__u32 level;  /* enum flow_level; the one that accounts for less, of this and FLOW_LEVEL, applies */
	__u32 budget; /* as FLOW_BUDGET, for this workload */
	__u32 cost;   /* this workload's part of FLOW_COST */
	__u32 samples; /* 1: payload of its frames is sampled, at the level FULL */
};

/* Key of `drops`, whose value is a number of packets. {0, 0} counts the packets for which the map had no room. */
struct flow_drop {
	__u32 workload;
	__u32 reason; /* enum skb_drop_reason of the kernel that runs */
};

/* Value of `names`, whose key is the workload's id: its namespace and name, padded with zeros. */
struct flow_name {
	char namespace[64];
	char workload[64];
};

/* Values of `marks` of a flow of OWNER_WIRE: which frames the flow has had. */
#define MARK_SEQUENCE 1     /* `pass` is valid: the sequence number after the last byte that was sent */
#define MARK_SYN_ANSWERED 2 /* a SYN with ACK was seen */
#define MARK_ESTABLISHED 4
#define MARK_FIN_SENT 8
#define MARK_FIN_RECEIVED 16
#define MARK_ENDED 32

/* `sent` and `received` of a flow contain the number of bytes in the lower 48 bits, and a port in the upper 16. */
#define FLOW_PORT_SHIFT 48
#define FLOW_BYTES_MASK ((1ull << FLOW_PORT_SHIFT) - 1)
/* Once they have reached these values, nothing more is added to the bytes or to `retransmits`. Additions that happen at
 * the same time on other CPUs still fit into the field.
 */
#define FLOW_MOST_BYTES (FLOW_BYTES_MASK - (1ull << 40))
#define FLOW_MOST_RETRANSMITS 0xe000
/* Most segments that one frame adds to `retransmits` of its flow. 64 KiB in segments of 1,448 bytes are 46. */
#define FLOW_MOST_SEGMENTS 64

/* `phase` of a flow contains, from the lowest bit: enum flow_state, enum flow_end, enum flow_role, enum flow_owner. */
#define FLOW_STATE_MASK 3
#define FLOW_END_SHIFT 2
#define FLOW_END_MASK 7
#define FLOW_ROLE_SHIFT 5
#define FLOW_OWNER_SHIFT 6

/* `family` of a flow contains AF_INET or AF_INET6 in the lower 6 bits. Above, if the flow is sampled: which side sent
 * the last payload, 1 the workload, 2 the other side, 0 before any.
 */
#define FLOW_FAMILY_MASK 63
#define FLOW_TALKER_SHIFT 6

/* Times of a flow have 16 bits. Below this number they are microseconds. From it on, the lower 15 bits are units of
 * 1,024 us, up to 33 s.
 */
#define FLOW_LONG_TIME 0x8000

/* Value of `flows`. The key is the cookie of the socket. For OWNER_WIRE it is a hash of the workload, the protocol and
 * both ends with the highest bit set, which no cookie has.
 *
 * The kernel may hold a million entries. So several values share a field, which makes an entry 80 bytes long instead of
 * 112 (docs/decisions/174-the-cost-of-flows-as-the-kernel-times-it.md).
 */
struct flow {
	__be32 remote_ip[4];
	__u64 opened_ns; /* times are of CLOCK_MONOTONIC */
	__u64 last_ns;   /* when its state changed, or when more bytes were first seen */
	__u64 sent;      /* bytes; in the upper 16 bits the workload's port */
	__u64 received;  /* bytes; in the upper 16 bits the other side's port */
	__u32 local;     /* the workload's address: IPv4 as it is; for IPv6 its key in `locals` */
	__u32 segments_sent;
	__u32 segments_received;
	__u32 pass; /* the last pass of the iterator that found the socket; OWNER_WIRE: see MARK_SEQUENCE */
	__u16 workload;
	__u16 peer;
	__u16 retransmits; /* see FLOW_MOST_RETRANSMITS */
	__u16 rtt;         /* smoothed; see FLOW_LONG_TIME */
	__u16 min_rtt;     /* the least in the kernel's window, five minutes by default */
	__u16 handshake;   /* client: connect to established; server: SYN-ACK to ACK */
	__u8 phase;
	__u8 protocol; /* IPPROTO_*; 0 in entries of an earlier version, and for frames that are not IP */
	__u8 marks;    /* OWNER_WIRE: MARK_* */
	__u8 family;
};

/* Value of `locals`: an IPv6 address of a workload. */
struct flow_local {
	__be32 ip[4];
};

/* Key of `pairs`: a workload, its peer, and how they communicate. */
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
	__u64 established;  /* of those, the connections that were established */
	__u64 handshake_us; /* sum over all that were established */
	__u64 rtt_us;       /* smoothed; sum over `rtt_samples` */
	__u64 rtt_samples;  /* established connections that have ended */
	__u64 duration_us;  /* sum over all connections that have ended */
	__u64 ended[8];     /* by enum flow_end */
};

/* Key of `requests`: identifies one row in which a proxy counts requests with the same labels. */
struct flow_request_key {
	__u64 memory; /* the memory of one worker of a proxy; 0: sums of proxies that have ended */
	__u64 claim;  /* the use of a row in that memory, each with its own number; for memory 0 a hash of the labels */
};

/* Value of `requests`: the requests with the same labels, as one worker of a proxy has counted them. Programs do not
 * write it: user space copies it from memory that proxies share.
 */
struct flow_requests {
	char labels[512];    /* the labels of leno_requests_total, each ends with a zero byte; unused bytes are zero */
	__u64 classes[6];    /* by the first digit of the status; 0 for statuses without a class */
	__u64 grpc[18];      /* calls by their grpc-status; the last one for all others */
	__u64 duration_us;
	__u64 durations[32]; /* histogram with the bounds leno_requests::BUCKET_BOUNDS_S */
	__u64 folded_memory; /* for memory 0: the row that was added last, so that it is not added twice */
	__u64 folded_claim;
};

/* Most payload bytes of a sample. Heads of HTTP/1, small frames of HTTP/2, commands and queries fit. */
#define FLOW_SAMPLE_BYTES 512

/* An entry of `samples`: the first bytes of the payload of one frame. Sampled are the first frame after the other side
 * has sent payload, and each frame whose payload fits into a sample.
 */
struct flow_sample {
	__u64 key;       /* of the flow in `flows` */
	__u64 at_ns;     /* CLOCK_MONOTONIC */
	__u64 opened_ns; /* distinguishes connections that have the same ports, and so the same key */
	__u32 workload;
	__u32 peer;
	__u32 sequence; /* TCP: the number of the first byte */
	__u32 payload;  /* how many bytes the frame has */
	__u16 local_port;
	__u16 remote_port;
	__u16 length; /* how many of them are in `bytes`; the rest of `bytes` is undefined */
	__u8 role;
	__u8 protocol; /* IPPROTO_* */
	__u8 sent;     /* by the workload: 1; received: 0 */
	__u8 turns;    /* 1: the payload before this was sent by the other side */
	__u8 reserved[6];
	__u8 bytes[FLOW_SAMPLE_BYTES];
};

/* Index into `sample_counts`. */
enum flow_sample_count {
	FLOW_SAMPLES_WRITTEN,
	FLOW_SAMPLES_LOST, /* `samples` was full, or the flow was not in the table */
	FLOW_SAMPLE_COUNTS,
};

/* Key of `wire_requests`: requests of the same kind and result, which user space has read from samples. */
struct flow_wire_key {
	__u32 workload; /* 0: the sums of all keys for which the map had no room */
	__u32 peer;
	__u8 role;
	__u8 protocol; /* the number of an application protocol, see leno_flows */
	__u8 reserved[6];
	char kind[16];   /* of the request, for example GET; unused bytes are zero */
	char result[16]; /* for example 2xx */
};

/* Value of `wire_requests`. Programs do not write it; the process that enrols workloads does. */
struct flow_wire_requests {
	__u64 requests;      /* including those without a duration */
	__u64 duration_us;   /* from the first byte of the request to the first byte of the response */
	__u64 durations[32]; /* histogram with the bounds leno_requests::BUCKET_BOUNDS_S */
};

/* An entry of `events`: a flow that is new or has changed its state. */
struct flow_event {
	__u64 cookie;
	__u64 at_ns;
	struct flow flow;
};

/* Index into `control`. Each setting is an entry of its own, so that writers of different settings do not overwrite
 * each other.
 */
enum flow_setting {
	FLOW_FOLLOWED, /* 1: a reader waits for events */
	FLOW_PASS,     /* the number of the iterator's present pass */
	FLOW_LEVEL,    /* enum flow_level */
	FLOW_BUDGET,   /* most CPU time of the programs, in millionths of the machine's; 0: no limit */
	FLOW_COST,     /* their CPU time when it was last measured, in the same unit */
	FLOW_SETTINGS,
};

/* How much is accounted for. User space chooses a lower level when the programs cost more than their budget. */
enum flow_level {
	LEVEL_FULL,
	LEVEL_AGGREGATED, /* only sums of pairs: connections that begin are not listed */
	LEVEL_OFF,        /* connections that begin are not accounted for */
	LEVEL_SOCKETS,    /* full, but TCP sockets are counted instead of frames */
	LEVEL_PACKETS,    /* full, but payload of frames is not sampled */
	FLOW_LEVELS,
};

/* Index into `totals`. */
enum flow_total {
	FLOW_ADDED,          /* entries made in `flows` */
	FLOW_UNLISTED,       /* flows for which `flows` had no entry left */
	FLOW_UNTRACKED,      /* connections without storage: the kernel had no memory */
	FLOW_FOLDED,         /* flows for whose pair `pairs` had no room */
	FLOW_EVENTS_WRITTEN,
	FLOW_EVENTS_DROPPED, /* `events` was full */
	FLOW_AGGREGATED,     /* connections that are not in `flows` because of the level */
	FLOW_LEFT_OUT,       /* connections that are not accounted for because of the level */
	FLOW_REMOVED,        /* entries of `flows` that user space removed; only user space writes this */
	FLOW_TOTALS,
};

/* Most workloads of one machine that have a network namespace of their own. A kubelet runs at most 110 pods unless
 * configured otherwise.
 */
#define MAX_FLOW_WORKLOADS 8192

/* Ids of workloads are indexes of arrays, from FLOW_PEERS on. */
#define MAX_FLOW_IDS (MAX_FLOW_WORKLOADS + FLOW_PEERS)

/* Most pairs of a workload and a reason. A kernel has some 120 reasons, but a workload meets few. */
#define MAX_FLOW_DROPS 4096

/* Most interfaces whose frames are counted: one for each workload. */
#define MAX_FLOW_PORTS MAX_FLOW_WORKLOADS

/* Most IPv6 addresses of workloads in `locals`; the least recently used one is evicted. A workload has one of its own,
 * and one for each link.
 */
#define MAX_FLOW_LOCALS 4096

/* Two addresses for each workload. */
#define MAX_FLOW_ADDRESSES 16384

/* Most pairs with sums of their own. With 2 roles and 2 owners each, these are 4,096 pairs of a workload and a peer.
 * Memory is allocated when a pair is first seen. Flows of further pairs are added to the pair {0, 0} of their role and
 * owner.
 */
#define MAX_FLOW_PAIRS 16384

/* Most rows of proxies, those of proxies that have ended included: 1 KiB each, allocated when a row is first seen. */
#define MAX_FLOW_REQUESTS 16384

/* Most rows that are read from samples. A workload has few peers, kinds and results for each protocol. */
#define MAX_FLOW_WIRE_REQUESTS 4096

#endif

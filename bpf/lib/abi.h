// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The constants and structures that user space and the kernel programs share. bpf/abi mirrors them
 * in Rust, and the loader's layout test compares the two through BTF.
 */
#ifndef LENO_ABI_H
#define LENO_ABI_H

#include <linux/types.h>

#define LENO_AF_INET 2
#define LENO_AF_INET6 10

/* An address and port. IPv4 is stored in IPv4-mapped form (::ffff:a.b.c.d), so that one comparison
 * serves both families; `family` tells which one it is.
 */
struct socket_address {
	__be32 ip[4];
	__be16 port;
	__u16 family;
};

/* The configuration of one workload's programs, fixed when they are loaded. It is read-only data,
 * so the verifier removes the branches that a workload does not need.
 */
struct capture_config {
	__u64 proxy_cgroup_id; /* the proxy runs in this cgroup; 0: it is recognised by its user */
	__u64 netns_cookie;    /* capture only in this namespace; 0: the kernel has no cookies */
	__u16 outbound_port;   /* the proxy's outbound listener */
	__u16 inbound_port;    /* the proxy's inbound listener */
	__u16 admin_port;      /* inbound connections to it pass */
	__u8 fail_closed;      /* while the proxy does not listen: refuse (1) or pass (0) */
	__u8 has_excluded;     /* 0: `excluded` is empty, skip the lookup */
	__u32 proxy_uid;       /* the proxy's user, if proxy_cgroup_id is 0 */
	__u32 datagrams;       /* enum datagram_capture */
};

/* Which datagrams of UDP are captured. */
enum datagram_capture {
	DATAGRAMS_PASS,      /* none: the programs are not attached */
	DATAGRAMS_CAPTURED,  /* all but DNS */
	DATAGRAMS_WITH_DNS,  /* all */
};

/* Key of `excluded`: a prefix of an address in IPv4-mapped or IPv6 form. */
struct prefix_key {
	__u32 length; /* in bits, 96 more than the IPv4 prefix length */
	__be32 ip[4];
};

/* Slots of `listeners`, each with room for LISTENERS_PER_SLOT sockets. The kernel removes a socket from the map when it
 * closes. So the proxy is listening if the slot has any socket in the state LISTEN.
 */
enum listener_slot {
	SLOT_INBOUND_IPV4,
	SLOT_INBOUND_IPV6,
	SLOT_OUTBOUND_IPV4,
	SLOT_OUTBOUND_IPV6,
	LISTENER_SLOTS,
};

/* Index into `counters`. */
enum counter {
	OUTBOUND_CAPTURED,
	OUTBOUND_PASSED_PROXY,
	OUTBOUND_PASSED_LOCAL,
	OUTBOUND_PASSED_EXCLUDED,
	OUTBOUND_PASSED_OPEN,
	OUTBOUND_REFUSED,
	ORIGINAL_ANNOUNCED,
	ORIGINAL_ACCEPTED,
	ORIGINAL_MISSED,
	ORIGINAL_ANSWERED,
	ORIGINAL_FAILED,
	INBOUND_CAPTURED,
	INBOUND_PASSED_LOCAL,
	INBOUND_PASSED_ADMIN,
	INBOUND_PASSED_OPEN,
	INBOUND_DROPPED_MESH_PORT,
	INBOUND_REFUSED,
	INBOUND_FAILED,
	LISTENER_REGISTERED,
	LISTENER_UNKEPT,
	LISTENER_FAILED,
	MPTCP_REFUSED,
	OUTBOUND_DROPPED_LINK_LOCAL,
	INBOUND_DROPPED_LINK_LOCAL,
	CLIENT_ANNOUNCED,
	CLIENT_SHOWN,
	CLIENT_FAILED,
	DATAGRAM_TARGETS,
	DATAGRAM_REFUSED,
	DATAGRAM_UNKNOWN,
	INBOUND_DROPPED_DATAGRAM,
	INBOUND_DROPPED_FORGED,
	COUNTERS,
};

/* The socket option by which the proxy passes the address of the client for which it connects to
 * the application: a sockaddr_in6, IPv4 in IPv4-mapped form. leno_types::source has the same
 * numbers.
 */
enum client_option {
	CLIENT_OPTION = 1,
	CLIENT_LEVEL = 0x4c656e6f,
};

/* Most original destinations (the addresses that applications dialled) between the SYN and the proxy's side of the
 * handshake. Over loopback that takes microseconds; they only accumulate while the accept queue is full
 * (net.core.somaxconn, 4096 by default), so this is twice that. The least recently used entry is evicted first, and its
 * connection is counted in ORIGINAL_MISSED. About 1 MiB.
 */
#define MAX_INFLIGHT 8192

/* The UDP port on which proxies receive QUIC from other proxies; it carries the datagrams of other workloads. */
#define DATAGRAM_PORT 15008

/* Most destinations of datagrams that are represented by placeholders (lib/datagram.h). A busy client has some hundred.
 * The one that was used least recently is evicted first; answers from its placeholder then keep the placeholder as
 * their source. About 0.4 MiB.
 */
#define MAX_DATAGRAM_TARGETS 4096

/* A placeholder is an address with a number of 22 bits: in 127.64.0.0/10, or in 100:0:0:1:1::/96, of which only the
 * first 2^22 addresses are used. leno_types::source has the same prefixes.
 */
#define PLACEHOLDER_BITS 22

/* Listening sockets of one port that are registered: one for each worker of a proxy, and of the proxy that takes over
 * from it. A sidecar has one worker, a large gateway a handful. Listeners beyond this number still get their share of
 * connections from the kernel. But if all registered ones close before those, the programs wrongly conclude that the
 * proxy does not listen.
 */
#define LISTENERS_PER_SLOT 16

/* Most excluded prefixes of one workload: those of its gateway, its DNS servers and the control plane, and those that
 * the operator adds.
 */
#define MAX_EXCLUDED 256

#endif

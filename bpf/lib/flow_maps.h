// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The maps of the flow programs. */
#ifndef LENO_FLOW_MAPS_H
#define LENO_FLOW_MAPS_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "flow_abi.h"
#include "tcp.h"

/* Stored with each socket that is accounted for: the pair whose sums it adds to, and how much of its counters was added
 * so far.
 */
struct tracked {
	__u64 cookie;
	__u64 opened_ns;
	struct tcp_counts added;
	struct flow_pair pair;
	__u32 established;
	__u32 ended;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tracked);
} sockets SEC(".maps");

/* The configuration, fixed when the programs are loaded. */
SEC(".rodata.config") const volatile struct flow_config flow_config;

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct flow);
} flows SEC(".maps");

/* While the table `flows` is being resized, this is the previous one; otherwise a map that is not used. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct flow);
} flows_before SEC(".maps");

/* IPv6 addresses of workloads, by a hash that flows have instead of the address (local_number). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOW_LOCALS);
	__type(key, __u32);
	__type(value, struct flow_local);
} locals SEC(".maps");

/* One entry for all CPUs, which add to it atomically. A map per CPU would cost memory, and time of the reader, for each
 * CPU (docs/decisions/053-flow-maps.md).
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_PAIRS);
	__type(key, struct flow_pair);
	__type(value, struct flow_sums);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_WORKLOADS);
	__type(key, __u64);
	__type(value, struct flow_workload);
} workloads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_ADDRESSES);
	__type(key, struct flow_address);
	__type(value, __u32);
} addresses SEC(".maps");

/* Only read by user space: with the names, pinned maps can be read without querying the mesh. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_WORKLOADS);
	__type(key, __u32);
	__type(value, struct flow_name);
} names SEC(".maps");

/* Only written and read by user space. It is a map so that the counts outlive the proxies, and the process that reads
 * them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_REQUESTS);
	__type(key, struct flow_request_key);
	__type(value, struct flow_requests);
} requests SEC(".maps");

/* As `requests`, for the requests that were read from samples. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_WIRE_REQUESTS);
	__type(key, struct flow_wire_key);
	__type(value, struct flow_wire_requests);
} wire_requests SEC(".maps");

/* The workload behind each interface whose frames are counted. The key is the index of the interface's outer end, in
 * the network namespace of the node or of the mesh.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Network namespaces that have an interface in `ports`. Their frames are counted, so their sockets are not. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOW_WORKLOADS);
	__type(key, __u64);
	__type(value, __u32);
} by_frames SEC(".maps");

/* Arrays indexed by the workload's id, so that a program finds an entry without hashing. Only programs write `runs`,
 * only user space writes `caps`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FLOW_IDS);
	__type(key, __u32);
	__type(value, struct flow_runs);
} runs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_FLOW_IDS);
	__type(key, __u32);
	__type(value, struct flow_cap);
} caps SEC(".maps");

/* Allocated completely when it is loaded, because a packet may be dropped in a context in which the kernel cannot
 * allocate memory.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOW_DROPS);
	__type(key, struct flow_drop);
	__type(value, __u64);
} drops SEC(".maps");

/* The number of the program that counts drops. The kernel cannot exchange the program of a link to a tracepoint. So two
 * programs are attached while one replaces the other, and only the one whose `turn` is here counts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} drop_turn SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOW_TOTALS);
	__type(key, enum flow_total);
	__type(value, __u64);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOW_SETTINGS);
	__type(key, enum flow_setting);
	__type(value, __u32);
} control SEC(".maps");

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* The loader sets the size when payload is first sampled. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOW_SAMPLE_COUNTS);
	__type(key, enum flow_sample_count);
	__type(value, __u64);
} sample_counts SEC(".maps");

/* Sets a number and returns its previous value, atomically. Kernels before 5.12 have no such instruction: LENO_PLAIN
 * compiles the programs without it. In that variant only the end of a connection adds to the sums, once and under the
 * socket's lock, and the iterator only updates `flows`.
 */
#ifdef LENO_PLAIN
#define EXCHANGE(number, value)                      \
	({                                           \
		__typeof__(number) was_ = number;    \
		number = value;                      \
		was_;                                \
	})
#else
#define EXCHANGE(number, value) __sync_lock_test_and_set(&(number), value)
#endif

static __always_inline void add(__u64 *sum, __u64 amount)
{
	if (amount)
		__sync_fetch_and_add(sum, amount);
}

static __always_inline void count_total(enum flow_total total)
{
	__u64 *value = bpf_map_lookup_elem(&totals, &total);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline __u32 flow_setting(enum flow_setting setting)
{
	__u32 *value = bpf_map_lookup_elem(&control, &setting);

	return value ? *value : 0;
}

static __always_inline enum flow_level lesser(__u32 one, __u32 other)
{
	if (one == LEVEL_OFF || other == LEVEL_OFF)
		return LEVEL_OFF;
	if (one == LEVEL_AGGREGATED || other == LEVEL_AGGREGATED)
		return LEVEL_AGGREGATED;
	if (one == LEVEL_SOCKETS || other == LEVEL_SOCKETS)
		return LEVEL_SOCKETS;
	return one == LEVEL_FULL ? other : one;
}

static __always_inline enum flow_level level_within(const struct flow_cap *cap)
{
	return lesser(flow_setting(FLOW_LEVEL), cap ? cap->level : LEVEL_FULL);
}

/* The level for a workload: the lesser one of the machine's and its own. */
static __always_inline enum flow_level level_of(__u32 workload)
{
	return level_within(bpf_map_lookup_elem(&caps, &workload));
}

/* Whether frames are counted at this level. */
static __always_inline bool has_frames(__u32 level)
{
	return level == LEVEL_FULL || level == LEVEL_PACKETS;
}

/* Counts a run of a program that accounts for something of a workload. By these counts the CPU time of the programs is
 * divided among workloads.
 */
static __always_inline void count_run(__u32 workload, enum flow_program program)
{
	struct flow_runs *all = bpf_map_lookup_elem(&runs, &workload);

	if (all)
		add(&all->of[program & 3], 1);
}

static __always_inline __u64 mix(__u64 sum, __u64 part)
{
	sum = (sum ^ part) * 0x9e3779b97f4a7c15;
	return sum ^ (sum >> 29);
}

static __always_inline __u64 mix_ip(__u64 sum, const __be32 *ip)
{
	return mix(mix(sum, ((__u64)ip[0] << 32) | ip[1]), ((__u64)ip[2] << 32) | ip[3]);
}

/* The field `local` of a flow for this address: IPv4 as it is, for IPv6 a hash. leno_bpf_abi::flow::local_of does the
 * same.
 */
static __always_inline __u32 local_number(const struct socket_address *address)
{
	if (address->family != LENO_AF_INET6)
		return address->ip[3];
	return mix_ip(0, address->ip) >> 32;
}

/* Stores an IPv6 address in `locals` under its number. */
static __always_inline void note_local(__u32 number, const struct socket_address *address)
{
	struct flow_local local;

	if (address->family != LENO_AF_INET6 || bpf_map_lookup_elem(&locals, &number))
		return;
	__builtin_memcpy(local.ip, address->ip, sizeof(local.ip));
	bpf_map_update_elem(&locals, &number, &local, BPF_NOEXIST);
}

static __always_inline enum flow_state flow_state_of(const struct flow *flow)
{
	return flow->phase & FLOW_STATE_MASK;
}

static __always_inline enum flow_end flow_end_of(const struct flow *flow)
{
	return (flow->phase >> FLOW_END_SHIFT) & FLOW_END_MASK;
}

static __always_inline enum flow_role flow_role_of(const struct flow *flow)
{
	return (flow->phase >> FLOW_ROLE_SHIFT) & 1;
}

static __always_inline __u8 phase_of(enum flow_role role, enum flow_owner owner)
{
	return FLOW_NEW | END_OPEN << FLOW_END_SHIFT | role << FLOW_ROLE_SHIFT |
	       owner << FLOW_OWNER_SHIFT;
}

static __always_inline void set_state(struct flow *flow, enum flow_state state, enum flow_end end)
{
	__u8 fixed = flow->phase & ~(FLOW_STATE_MASK | FLOW_END_MASK << FLOW_END_SHIFT);

	flow->phase = fixed | state | end << FLOW_END_SHIFT;
}

static __always_inline __u16 local_port_of(const struct flow *flow)
{
	return flow->sent >> FLOW_PORT_SHIFT;
}

static __always_inline __u16 remote_port_of(const struct flow *flow)
{
	return flow->received >> FLOW_PORT_SHIFT;
}

static __always_inline __u16 short_time(__u64 us)
{
	if (us < FLOW_LONG_TIME)
		return us;
	us >>= 10;
	return us < FLOW_LONG_TIME ? FLOW_LONG_TIME | us : 0xffff;
}

/* The entry of a socket, or 0 if it was evicted; user space counts evictions. While the table is being resized, user
 * space copies the entries that are not in the new table yet. An entry that changes before is moved here, so that the
 * copy never replaces a newer one.
 */
static __always_inline struct flow *flow_of(const __u64 *cookie)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, cookie), *before;

	if (flow || !flow_config.carries_over)
		return flow;
	before = bpf_map_lookup_elem(&flows_before, cookie);
	if (!before)
		return 0;
	bpf_map_update_elem(&flows, cookie, before, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, cookie);
}

/* Returns the sums of a pair, and creates them if the pair is new. If there is no room, returns the sums of the pair
 * {0, 0} of the same role and owner, so that no byte is lost; the loader creates those before any program runs.
 */
static __always_inline struct flow_sums *sums_of(const struct flow_pair *pair, bool opens)
{
	struct flow_sums *sums = bpf_map_lookup_elem(&pairs, pair);
	static const struct flow_sums zero;
	struct flow_pair rest = { .role = pair->role, .owner = pair->owner };

	if (sums)
		return sums;
	/* Another CPU may create the entry first; then this fails, and the lookup finds that one. */
	bpf_map_update_elem(&pairs, pair, &zero, BPF_NOEXIST);
	sums = bpf_map_lookup_elem(&pairs, pair);
	if (sums)
		return sums;
	if (opens)
		count_total(FLOW_FOLDED);
	return bpf_map_lookup_elem(&pairs, &rest);
}

/* Writes an event if a reader waits for events. The reader polls and is not woken, because waking it would cost more
 * than the rest of the accounting for a connection.
 */
static __always_inline void publish(__u64 cookie, __u64 now, const struct flow *flow)
{
	struct flow_event *event;

	if (!flow_setting(FLOW_FOLLOWED))
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_total(FLOW_EVENTS_DROPPED);
		return;
	}
	event->cookie = cookie;
	event->at_ns = now;
	event->flow = *flow;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	count_total(FLOW_EVENTS_WRITTEN);
}

/* Adds a new flow to the table, or replaces its entry: a socket whose connect() failed may connect again under the same
 * cookie.
 */
static __always_inline void list(__u64 cookie, const struct flow *flow)
{
	long error;

	if (flow_config.carries_over)
		flow_of(&cookie);
	error = bpf_map_update_elem(&flows, &cookie, flow, BPF_NOEXIST);
	if (!error)
		count_total(FLOW_ADDED);
	else if (error != -EEXIST || bpf_map_update_elem(&flows, &cookie, flow, BPF_EXIST))
		count_total(FLOW_UNLISTED);
}

/* The id of the peer. If an application does not listen on loopback, the proxy connects to it at the workload's own
 * address, from the stand-in address. This is PEER_SELF, and not a connection between two instances of the workload.
 */
static __always_inline __u32 peer_of(const struct socket_address *local,
				     const struct socket_address *remote, __u32 port)
{
	struct flow_address address = {
		.ip = { remote->ip[0], remote->ip[1], remote->ip[2], remote->ip[3] },
		.port = port,
	};
	__u32 *found;

	if (is_loopback(remote) || is_stand_in(remote) || is_stand_in(local) ||
	    same_ip(local, remote))
		return PEER_SELF;
	found = bpf_map_lookup_elem(&addresses, &address);
	if (!found) {
		address.port = 0;
		found = bpf_map_lookup_elem(&addresses, &address);
	}
	return found ? *found : PEER_OUTSIDE;
}

#endif

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Accounts for the TCP connections of enrolled network namespaces. No program runs per packet: the kernel counts the
 * bytes, segments, retransmissions and round-trip times of every socket by itself. These programs read the counters
 * when a connection changes its state, and those of open connections when user space requests it.
 *
 *   leno_flow_sockops  connect, accept, each change of state    ─► flows, pairs, events
 *   leno_flow_read     when its pin is read: every open socket  ─► flows, pairs
 *   leno_flow_read_tcp the same, in one network namespace       ─► flows, pairs
 *
 * Each of them adds to the sums of the pair how much the socket's counters have grown since the last time. If frames
 * are to be counted instead (they also show UDP, ICMP and retransmissions), programs run for each frame, at the end of
 * an interface that is outside of the workload's namespace:
 *
 *   leno_flow_sent     what the workload sends                  ─► flows, pairs, events, samples
 *   leno_flow_received what arrives for it                      ─► flows, pairs, events, samples
 *
 *   leno_flow_drop     a packet that the kernel drops           ─► drops
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../lib/abi.h"
#include "../lib/address.h"
#include "../lib/flow_abi.h"
#include "../lib/flow_drops.h"
#include "../lib/flow_frames.h"
#include "../lib/flow_maps.h"
#include "../lib/tcp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The errors of a socket that tell how its connection ended. */
#define IS_REFUSED(error) ((error) == ECONNREFUSED)
#define IS_TIMEOUT(error) ((error) == ETIMEDOUT || (error) == EHOSTUNREACH || (error) == ENETUNREACH)
#define IS_RESET(error) ((error) == ECONNRESET || (error) == EPIPE)

/* Sets the mark, which is how much was added so far, to `now`, and adds the difference to the sum. The difference is
 * signed: when a FIN has arrived but is not noted in the socket yet, the iterator may have read one byte too many.
 */
#define ADD_LAST(sum, mark, now, signed_type) \
	add(sum, (__u64)(signed_type)((now) - EXCHANGE(mark, now)))

static __always_inline bool is_client(const struct tracked *tracked)
{
	return tracked->pair.role == ROLE_CLIENT;
}

/* Adds how much the counters of a connection that ends have grown since the last time. */
static __always_inline void settle(struct tracked *tracked, const struct tcp_counts *counts,
				   struct flow_sums *sums)
{
	struct tcp_counts *added = &tracked->added;

	ADD_LAST(&sums->bytes_sent, added->sent, counts->sent, __s64);
	ADD_LAST(&sums->bytes_received, added->received, counts->received, __s64);
	ADD_LAST(&sums->segments_sent, added->segments_sent, counts->segments_sent, __s32);
	ADD_LAST(&sums->segments_received, added->segments_received, counts->segments_received, __s32);
	ADD_LAST(&sums->retransmits, added->retransmits, counts->retransmits, __s32);
}

#ifndef LENO_PLAIN
/* The same for the iterator, which does not hold the socket's lock. `marked` is the mark as read before `now`. If the
 * connection ended in between, the mark has changed, and nothing is added.
 */
#define ADD_OPEN(sum, mark, marked, now, signed_type)                                        \
	do {                                                                                  \
		if ((now) != (marked) && __sync_bool_compare_and_swap(&(mark), marked, now))  \
			add(sum, (__u64)(signed_type)((now) - (marked)));                     \
	} while (0)

static __always_inline void settle_open(struct tracked *tracked, const struct tcp_counts *marks,
					const struct tcp_counts *counts, struct flow_sums *sums)
{
	struct tcp_counts *added = &tracked->added;

	ADD_OPEN(&sums->bytes_sent, added->sent, marks->sent, counts->sent, __s64);
	ADD_OPEN(&sums->bytes_received, added->received, marks->received, counts->received, __s64);
	ADD_OPEN(&sums->segments_sent, added->segments_sent, marks->segments_sent,
		 counts->segments_sent, __s32);
	ADD_OPEN(&sums->segments_received, added->segments_received, marks->segments_received,
		 counts->segments_received, __s32);
	ADD_OPEN(&sums->retransmits, added->retransmits, marks->retransmits, counts->retransmits,
		 __s32);
}
#endif

/* The field for the bytes of a direction, whose upper bits keep their port. */
static __always_inline __u64 with_port(__u64 before, __u64 bytes)
{
	if (bytes > FLOW_MOST_BYTES)
		bytes = FLOW_MOST_BYTES;
	return (before & ~FLOW_BYTES_MASK) | bytes;
}

static __always_inline void show(struct flow *flow, const struct tcp_counts *counts,
				 struct tcp_sock *tcp)
{
	flow->sent = with_port(flow->sent, counts->sent);
	flow->received = with_port(flow->received, counts->received);
	flow->segments_sent = counts->segments_sent;
	flow->segments_received = counts->segments_received;
	flow->retransmits = counts->retransmits < FLOW_MOST_RETRANSMITS ? counts->retransmits :
									  FLOW_MOST_RETRANSMITS;
	flow->rtt = short_time(smoothed_rtt_us(tcp));
	flow->min_rtt = short_time(min_rtt_us(tcp));
}

static __always_inline struct socket_address local_of(struct bpf_sock_ops *ops)
{
	if (ops->family == LENO_AF_INET)
		return ipv4_address(ops->local_ip4, 0);
	return ipv6_address(ops->local_ip6[0], ops->local_ip6[1], ops->local_ip6[2],
			    ops->local_ip6[3], 0);
}

static __always_inline struct socket_address remote_of(struct bpf_sock_ops *ops)
{
	if (ops->family == LENO_AF_INET)
		return ipv4_address(ops->remote_ip4, 0);
	return ipv6_address(ops->remote_ip6[0], ops->remote_ip6[1], ops->remote_ip6[2],
			    ops->remote_ip6[3], 0);
}

/* The key of the socket's network namespace in `workloads`. */
static __always_inline __u64 netns_of(struct bpf_sock_ops *ops)
{
	struct sock_common *sk;

	if (!flow_config.netns_by_inode)
		return bpf_get_netns_cookie(ops);
	if (!ops->sk)
		return 0;
	sk = (struct sock_common *)bpf_skc_to_tcp_sock(ops->sk);
	return sk ? sk->skc_net.net->ns.inum : 0;
}

/* Begins a flow: before a client's SYN leaves, or when the handshake of an accepted connection is done. */
static __always_inline void open_flow(struct bpf_sock_ops *ops, enum flow_role role)
{
	__u64 netns = netns_of(ops);
	struct flow_workload *workload = bpf_map_lookup_elem(&workloads, &netns);
	struct tracked fresh = {}, *tracked;
	struct socket_address local, remote;
	struct bpf_sock *sk = ops->sk;
	struct flow_sums *sums;
	struct flow flow = {};
	struct tcp_sock *tcp;
	__u32 level;

	if (!workload || !sk)
		return;
	level = level_of(workload->id);
	if (level == LEVEL_OFF) {
		count_total(FLOW_LEFT_OUT);
		return;
	}
	if (has_frames(level) && bpf_map_lookup_elem(&by_frames, &netns))
		return;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return;
	count_run(workload->id, PROGRAM_SOCKOPS);
	local = local_of(ops);
	remote = remote_of(ops);
	fresh.cookie = bpf_get_socket_cookie(ops);
	fresh.opened_ns = bpf_ktime_get_ns();
	fresh.pair.workload = workload->id;
	fresh.pair.peer = peer_of(&local, &remote, bpf_ntohl(ops->remote_port));
	fresh.pair.role = role;
	fresh.pair.owner = ((struct sock *)tcp)->sk_uid.val == workload->proxy_uid ?
				   OWNER_PROXY : OWNER_APPLICATION;
	if (role == ROLE_CLIENT) {
		/* The counters still have what an earlier connect() of the same socket, which failed, has counted. */
		fresh.added.segments_sent = tcp->segs_out;
		fresh.added.segments_received = tcp->segs_in;
		fresh.added.retransmits = tcp->total_retrans;
	}
	tracked = bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!tracked) {
		count_total(FLOW_UNTRACKED);
		return;
	}
	*tracked = fresh;
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	sums = sums_of(&fresh.pair, true);
	if (sums)
		add(&sums->opened, 1);
	if (level == LEVEL_AGGREGATED) {
		count_total(FLOW_AGGREGATED);
		return;
	}
	flow.local = local_number(&local);
	note_local(flow.local, &local);
	__builtin_memcpy(flow.remote_ip, remote.ip, sizeof(flow.remote_ip));
	flow.opened_ns = flow.last_ns = fresh.opened_ns;
	flow.sent = (__u64)ops->local_port << FLOW_PORT_SHIFT;
	flow.received = (__u64)bpf_ntohl(ops->remote_port) << FLOW_PORT_SHIFT;
	flow.workload = fresh.pair.workload;
	flow.peer = fresh.pair.peer;
	flow.family = local.family;
	flow.phase = phase_of(role, fresh.pair.owner);
	flow.protocol = IPPROTO_TCP;
	list(fresh.cookie, &flow);
	publish(fresh.cookie, fresh.opened_ns, &flow);
}

/* How the connection ended, and by which side. Errors of the socket are considered first. The side that closes first
 * passes FIN_WAIT2 or CLOSING, the other one LAST_ACK. A connection that leaves any other state was reset: by the other
 * side if the socket has the error ECONNRESET or EPIPE, otherwise by this side.
 */
static __always_inline enum flow_end end_of(__u32 from, int error)
{
	if (IS_TIMEOUT(error))
		return END_TIMED_OUT;
	if (IS_REFUSED(error))
		return END_REFUSED;
	if (IS_RESET(error))
		return END_RESET_REMOTE;
	if (from == BPF_TCP_FIN_WAIT2 || from == BPF_TCP_CLOSING || from == BPF_TCP_TIME_WAIT)
		return END_CLOSED_LOCAL;
	if (from == BPF_TCP_LAST_ACK)
		return END_CLOSED_REMOTE;
	return END_RESET_LOCAL;
}

static __always_inline void close_flow(struct tracked *tracked, struct tcp_sock *tcp, __u64 now,
				       enum flow_end end)
{
	struct tcp_counts counts = counts_of(tcp, is_client(tracked));
	struct flow_sums *sums = sums_of(&tracked->pair, false);

	if (!sums || EXCHANGE(tracked->ended, 1))
		return;
	settle(tracked, &counts, sums);
	add(&sums->ended[end & 7], 1);
	add(&sums->duration_us, (now - tracked->opened_ns) / 1000);
	if (tracked->established) {
		add(&sums->rtt_us, smoothed_rtt_us(tcp));
		add(&sums->rtt_samples, 1);
	}
}

static __always_inline __u32 establish(struct tracked *tracked, struct tcp_sock *tcp, __u64 now)
{
	struct flow_sums *sums = sums_of(&tracked->pair, false);
	__u32 took_us = is_client(tracked) ? (now - tracked->opened_ns) / 1000 : smoothed_rtt_us(tcp);

	tracked->established = 1;
	if (sums) {
		add(&sums->established, 1);
		add(&sums->handshake_us, took_us);
	}
	return took_us;
}

static __always_inline enum flow_state state_of(__u32 to)
{
	if (to == BPF_TCP_CLOSE)
		return FLOW_CLOSED;
	return to == BPF_TCP_ESTABLISHED ? FLOW_ESTABLISHED : FLOW_CLOSING;
}

static __always_inline void change_state(struct bpf_sock_ops *ops, __u32 from, __u32 to)
{
	struct bpf_sock *sk = ops->sk;
	enum flow_end end = END_OPEN;
	struct tcp_counts counts;
	struct tracked *tracked;
	struct tcp_sock *tcp;
	struct flow *flow;
	__u32 took_us = 0;
	enum flow_state before;
	__u64 now;

	if (!sk)
		return;
	tracked = bpf_sk_storage_get(&sockets, sk, 0, 0);
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tracked || !tcp || tracked->ended)
		return;
	count_run(tracked->pair.workload, PROGRAM_SOCKOPS);
	now = bpf_ktime_get_ns();
	if (to == BPF_TCP_ESTABLISHED) {
		took_us = establish(tracked, tcp, now);
	} else if (to == BPF_TCP_CLOSE) {
		end = end_of(from, ((struct sock *)tcp)->sk_err);
		close_flow(tracked, tcp, now, end);
	}
	flow = flow_of(&tracked->cookie);
	if (!flow)
		return;
	counts = counts_of(tcp, is_client(tracked));
	show(flow, &counts, tcp);
	before = flow_state_of(flow);
	set_state(flow, state_of(to), end);
	flow->last_ns = now;
	if (took_us)
		flow->handshake = short_time(took_us);
	if (state_of(to) != before)
		publish(tracked->cookie, now, flow);
}

SEC("sockops")
int leno_flow_sockops(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_STATE_CB)
		change_state(ops, ops->args[0], ops->args[1]);
	else if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		open_flow(ops, ROLE_CLIENT);
	else if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		open_flow(ops, ROLE_SERVER);
	return 1;
}

/* The context of an iterator over socket storage; only the fields that are read. */
struct bpf_iter__bpf_sk_storage_map {
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

/* Reads the counters of an open connection and adds their growth to the sums. Returns whether `counts` may be shown.
 * They may not if bytes were acknowledged meanwhile: these could be counted twice, as acknowledged and as under way.
 * Nothing is lost, because the next reading adds them.
 */
static __always_inline bool read_open(struct tracked *tracked, struct tcp_sock *tcp,
				      struct tcp_counts *counts)
{
#ifdef LENO_PLAIN
	__u64 before = acknowledged(tcp);

	if (tracked->ended)
		return false;
	*counts = counts_of(tcp, is_client(tracked));
	barrier();
	return acknowledged(tcp) == before;
#else
	struct tcp_counts marks = tracked->added;
	struct flow_sums *sums;
	__u64 before;

	/* This is also a full barrier between reading the marks and reading the counters. */
	if (__sync_fetch_and_add(&tracked->ended, 0))
		return false;
	before = acknowledged(tcp);
	*counts = counts_of(tcp, is_client(tracked));
	barrier();
	if (acknowledged(tcp) != before)
		return false;
	sums = sums_of(&tracked->pair, false);
	if (sums)
		settle_open(tracked, &marks, counts, sums);
	return true;
#endif
}

/* Updates the flow and the sums of an open connection. */
static __always_inline void read_flow(struct tracked *tracked, struct tcp_sock *tcp)
{
	struct tcp_counts counts = {};
	struct flow *flow;
	bool is_stable;
	__u64 cookie;

	if (tracked->ended)
		return;
	cookie = tracked->cookie;
	is_stable = read_open(tracked, tcp, &counts);
	flow = flow_of(&cookie);
	if (!flow || flow_state_of(flow) == FLOW_CLOSED)
		return;
	flow->pass = flow_setting(FLOW_PASS);
	if (!is_stable)
		return;
	if ((flow->sent & FLOW_BYTES_MASK) != counts.sent ||
	    (flow->received & FLOW_BYTES_MASK) != counts.received)
		flow->last_ns = bpf_ktime_get_ns();
	show(flow, &counts, tcp);
}

/* Visits all accounted sockets, in all network namespaces. Not used on kernels from 7.0 on: their iterator follows a
 * null pointer if a socket ends while it is visited (docs/decisions/172-reading-by-namespace.md).
 */
SEC("iter/bpf_sk_storage_map")
int leno_flow_read(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct tracked *tracked;
	struct tcp_sock *tcp;

	if (!sk)
		return 0;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
#ifdef LENO_PLAIN
	tracked = ctx->value; /* iterators have no helper for it before 5.11 */
#else
	tracked = bpf_sk_storage_get(&sockets, sk, 0, 0);
#endif
	if (tcp && tracked)
		read_flow(tracked, tcp);
	return 0;
}

#ifndef LENO_PLAIN
/* The context of an iterator over the TCP sockets of the network namespace in which its file was opened; only the field
 * that is read.
 */
struct bpf_iter__tcp {
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

/* The same where the iterator above is not safe. It is slower: for each enrolled namespace it walks the whole hash
 * table of the machine's connections.
 */
SEC("iter/tcp")
int leno_flow_read_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;
	struct tracked *tracked;
	struct tcp_sock *tcp;

	if (!sk)
		return 0;
	tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	tracked = bpf_sk_storage_get(&sockets, tcp, 0, 0);
	if (tracked)
		read_flow(tracked, tcp);
	return 0;
}
#endif

SEC("tp_btf/kfree_skb")
int leno_flow_drop(__u64 *ctx)
{
	count_drop(ctx);
	return 0;
}

SEC("tc")
int leno_flow_sent(struct __sk_buff *skb)
{
	count_frame(skb, true);
	return NEXT_PROGRAM;
}

SEC("tc")
int leno_flow_received(struct __sk_buff *skb)
{
	count_frame(skb, false);
	return NEXT_PROGRAM;
}

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Accounts for the frames of one interface: their bytes as they are on the wire, each frame once, whatever its
 * protocol.
 *
 * A flow is a protocol, two addresses and, for TCP and UDP, two ports. The state of a TCP connection is read from
 * flags:
 *
 *   first frame ─► NEW ─┬─ workload is the client: SYN with ACK arrives ─┬─► ESTABLISHED
 *                       └─ a frame without SYN from the client ──────────┘
 *   NEW, ESTABLISHED ─ first FIN ─► CLOSING ─ FIN of the other side ─► CLOSED
 *   any state ─ RST ─► CLOSED
 *
 * A flow of another protocol is NEW until the server's side has sent a frame, then ESTABLISHED; user space removes it
 * once it is idle. Each frame is also added to the sums of its pair, so these do not depend on room in the table of
 * flows.
 */
#ifndef LENO_FLOW_FRAMES_H
#define LENO_FLOW_FRAMES_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "flow_abi.h"
#include "flow_maps.h"
#include "flow_samples.h"
#include "packet.h"

/* The verdict that leaves the frame to the next program of the hook (tcx), or to the next classifier. */
#define NEXT_PROGRAM TC_ACT_UNSPEC

/* Atomic operations need words of 32 bits. `marks` is changed as part of the word that begins with `phase`, and
 * `retransmits` as part of the word that begins with itself.
 */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MARKS_SHIFT 16
#define RETRANSMITS_SHIFT 0
#else
#define MARKS_SHIFT 8
#define RETRANSMITS_SHIFT 16
#endif

/* Sets a mark, and returns whether it was set before. Kernels before 5.12 (LENO_PLAIN) have no atomic OR that returns
 * the previous value.
 */
#ifdef LENO_PLAIN
static __always_inline bool set_mark(struct flow *flow, __u32 mark)
{
	bool before = flow->marks & mark;

	flow->marks |= mark;
	return before;
}
#else
static __always_inline bool set_mark(struct flow *flow, __u32 mark)
{
	__u32 *word = (__u32 *)&flow->phase;

	return __sync_fetch_and_or(word, mark << MARKS_SHIFT) & (mark << MARKS_SHIFT);
}
#endif

/* A frame from the point of view of the workload. */
struct frame {
	struct socket_address local;
	struct socket_address remote;
	__u64 now;
	__u64 key;
	__u32 bytes;
	__u32 segments;
	__u32 payload;
	__u32 sequence;
	struct flow_pair pair;
	__u8 flags;
	bool sent;
};

static __always_inline __u64 key_of(const struct frame *frame)
{
	__u64 sum = ((__u64)frame->pair.workload << 8) | frame->pair.protocol;

	sum = mix_ip(mix_ip(sum, frame->local.ip), frame->remote.ip);
	sum = mix(sum, ((__u64)frame->local.port << 16) | frame->remote.port);
	return sum | (1ull << 63);
}

/* The workload's role. With TCP, the client is the side that sends a SYN without ACK. If a connection is first seen
 * later, the side with the lower port is taken for the server. With other protocols, the sender of the first frame is
 * the client.
 */
static __always_inline enum flow_role role_of(const struct frame *frame)
{
	bool by_workload = frame->sent;

	if (frame->pair.protocol == IPPROTO_TCP) {
		if (!(frame->flags & TCP_SYN))
			by_workload = bpf_ntohs(frame->local.port) > bpf_ntohs(frame->remote.port);
		else if (frame->flags & TCP_ACK)
			by_workload = !frame->sent;
	}
	return by_workload ? ROLE_CLIENT : ROLE_SERVER;
}

/* Whether the frame begins a connection: a SYN without ACK. */
static __always_inline bool begins(const struct frame *frame)
{
	return (frame->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline bool is_of(const struct flow *flow, const struct frame *frame)
{
	return flow->workload == frame->pair.workload && flow->protocol == frame->pair.protocol &&
	       local_port_of(flow) == bpf_ntohs(frame->local.port) &&
	       remote_port_of(flow) == bpf_ntohs(frame->remote.port) &&
	       flow->local == local_number(&frame->local) &&
	       same_words(flow->remote_ip, frame->remote.ip);
}

/* Returns the entry of a frame's flow, and creates it if the flow is new. 0 if the table has no room, or if another
 * flow has the same key.
 */
static __always_inline struct flow *flow_of_frame(struct frame *frame, bool *is_new)
{
	struct flow *flow = flow_of(&frame->key), fresh = {};

	/* A connection that begins may reuse the addresses and ports of one that has ended. */
	if (flow && is_of(flow, frame) && !(flow_state_of(flow) == FLOW_CLOSED && begins(frame))) {
		frame->pair.role = flow_role_of(flow);
		frame->pair.peer = flow->peer;
		return flow;
	}
	frame->pair.role = role_of(frame);
	/* A frame that is not IP has no addresses. */
	frame->pair.peer = frame->local.family ?
				   peer_of(&frame->local, &frame->remote,
					   bpf_ntohs(frame->remote.port)) : PEER_OUTSIDE;
	if (flow && !is_of(flow, frame)) {
		count_total(FLOW_UNLISTED);
		return 0;
	}
	*is_new = true;
	fresh.local = local_number(&frame->local);
	note_local(fresh.local, &frame->local);
	__builtin_memcpy(fresh.remote_ip, frame->remote.ip, sizeof(fresh.remote_ip));
	fresh.opened_ns = fresh.last_ns = frame->now;
	fresh.workload = frame->pair.workload;
	fresh.peer = frame->pair.peer;
	fresh.sent = (__u64)bpf_ntohs(frame->local.port) << FLOW_PORT_SHIFT;
	fresh.received = (__u64)bpf_ntohs(frame->remote.port) << FLOW_PORT_SHIFT;
	fresh.family = frame->local.family;
	fresh.phase = phase_of(frame->pair.role, OWNER_WIRE);
	fresh.protocol = frame->pair.protocol;
	list(frame->key, &fresh);
	return bpf_map_lookup_elem(&flows, &frame->key);
}

/* The sequence number that follows this frame; SYN and FIN count as one byte each. */
static __always_inline __u32 after(const struct frame *frame)
{
	return frame->sequence + frame->payload + !!(frame->flags & (TCP_SYN | TCP_FIN));
}

/* `retransmits` is added to atomically, as part of a word whose other half is `rtt`. It must not overflow into that
 * half. The bound is checked before the addition, so all CPUs at once may exceed it by FLOW_MOST_SEGMENTS each: there
 * is room for 127 CPUs. Readers show no more than the bound.
 */
_Static_assert(FLOW_MOST_RETRANSMITS + 127 * FLOW_MOST_SEGMENTS <= 0xffff, "127 CPUs at once");

static __always_inline void add_retransmits(struct flow *flow, __u32 segments)
{
	__u32 *word = (__u32 *)&flow->retransmits;

	if (segments > FLOW_MOST_SEGMENTS)
		segments = FLOW_MOST_SEGMENTS;
	if (flow->retransmits < FLOW_MOST_RETRANSMITS)
		__sync_fetch_and_add(word, segments << RETRANSMITS_SHIFT);
}

static __always_inline void add_flow_bytes(__u64 *bytes, __u32 added)
{
	if ((*bytes & FLOW_BYTES_MASK) < FLOW_MOST_BYTES)
		__sync_fetch_and_add(bytes, added);
}

static __always_inline void count_again(struct flow *flow, const struct frame *frame,
					struct flow_sums *sums)
{
	__u32 next = after(frame);

	if (next == frame->sequence)
		return;
	if (set_mark(flow, MARK_SEQUENCE) && (__s32)(next - flow->pass) <= 0) {
		add_retransmits(flow, frame->segments);
		add(&sums->retransmits, frame->segments);
		return;
	}
	flow->pass = next;
}

static __always_inline void establish_frame(struct flow *flow, struct flow_sums *sums,
					    __u64 took_ns)
{
	__u32 took_us = took_ns / 1000;

	if (set_mark(flow, MARK_ESTABLISHED))
		return;
	set_state(flow, FLOW_ESTABLISHED, flow_end_of(flow));
	add(&sums->established, 1);
	if (!took_us)
		return;
	flow->handshake = flow->rtt = short_time(took_us);
	add(&sums->handshake_us, took_us);
	add(&sums->rtt_us, took_us);
	add(&sums->rtt_samples, 1);
}

static __always_inline void end_frame(struct flow *flow, struct flow_sums *sums, __u64 now,
				      enum flow_end end)
{
	if (set_mark(flow, MARK_ENDED))
		return;
	set_state(flow, FLOW_CLOSED, end);
	add(&sums->ended[end & 7], 1);
	add(&sums->duration_us, (now - flow->opened_ns) / 1000);
}

static __always_inline enum flow_end end_of_reset(const struct flow *flow, bool sent)
{
	if (flow_state_of(flow) == FLOW_NEW && sent == (flow_role_of(flow) == ROLE_SERVER))
		return END_REFUSED;
	return sent ? END_RESET_LOCAL : END_RESET_REMOTE;
}

/* Follows the state of a connection by the flags of a frame. `flow->last_ns` is still the time of the previous frame.
 */
static __always_inline void follow_tcp(struct flow *flow, const struct frame *frame,
				       struct flow_sums *sums)
{
	bool by_client = frame->sent == (flow_role_of(flow) == ROLE_CLIENT);
	bool is_first_fin;

	if (frame->flags & TCP_RST) {
		end_frame(flow, sums, frame->now, end_of_reset(flow, frame->sent));
		return;
	}
	if ((frame->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)) {
		set_mark(flow, MARK_SYN_ANSWERED);
		if (flow_role_of(flow) == ROLE_CLIENT)
			establish_frame(flow, sums, frame->now - flow->opened_ns);
	} else if (!(frame->flags & TCP_SYN) && flow_state_of(flow) == FLOW_NEW && by_client) {
		/* If no SYN with ACK was seen, the connection is older than the accounting, and the handshake's
		 * duration is unknown.
		 */
		establish_frame(flow, sums, flow->marks & MARK_SYN_ANSWERED ?
						    frame->now - flow->last_ns : 0);
	}
	if (!(frame->flags & TCP_FIN))
		return;
	is_first_fin = !(flow->marks & (MARK_FIN_SENT | MARK_FIN_RECEIVED));
	set_mark(flow, frame->sent ? MARK_FIN_SENT : MARK_FIN_RECEIVED);
	if (is_first_fin) {
		set_state(flow, FLOW_CLOSING, frame->sent ? END_CLOSED_LOCAL : END_CLOSED_REMOTE);
	} else if ((flow->marks & (MARK_FIN_SENT | MARK_FIN_RECEIVED)) ==
		   (MARK_FIN_SENT | MARK_FIN_RECEIVED)) {
		end_frame(flow, sums, frame->now, flow_end_of(flow));
	}
}

static __always_inline void follow_datagrams(struct flow *flow, const struct frame *frame)
{
	if (frame->sent != (flow_role_of(flow) == ROLE_CLIENT))
		set_state(flow, FLOW_ESTABLISHED, END_OPEN);
}

static __always_inline void add_frame(const struct frame *frame, struct flow_sums *sums)
{
	add(frame->sent ? &sums->bytes_sent : &sums->bytes_received, frame->bytes);
	add(frame->sent ? &sums->segments_sent : &sums->segments_received, frame->segments);
}

static __always_inline void account_frame(struct frame *frame)
{
	struct flow_sums *sums;
	bool is_new = false;
	enum flow_state before;
	struct flow *flow;

	flow = flow_of_frame(frame, &is_new);
	sums = sums_of(&frame->pair, is_new);
	if (!sums)
		return;
	add_frame(frame, sums);
	if (is_new)
		add(&sums->opened, 1);
	if (!flow)
		return;
	if (frame->sent) {
		add_flow_bytes(&flow->sent, frame->bytes);
		__sync_fetch_and_add(&flow->segments_sent, frame->segments);
	} else {
		add_flow_bytes(&flow->received, frame->bytes);
		__sync_fetch_and_add(&flow->segments_received, frame->segments);
	}
	before = flow_state_of(flow);
	if (frame->pair.protocol == IPPROTO_TCP) {
		if (frame->sent)
			count_again(flow, frame, sums);
		follow_tcp(flow, frame, sums);
	} else {
		follow_datagrams(flow, frame);
	}
	flow->last_ns = frame->now;
	if (is_new || flow_state_of(flow) != before)
		publish(frame->key, frame->now, flow);
}

static __always_inline void count_frame(struct __sk_buff *skb, bool sent)
{
	__u32 port = skb->ifindex, *workload = bpf_map_lookup_elem(&ports, &port);
	struct packet packet = {};
	struct frame frame = {};

	if (!workload || !has_frames(level_of(*workload)))
		return;
	count_run(*workload, sent ? PROGRAM_SENT : PROGRAM_RECEIVED);
	read_packet(skb, &packet);
	frame.local = sent ? packet.from : packet.to;
	frame.remote = sent ? packet.to : packet.from;
	frame.now = bpf_ktime_get_ns();
	frame.sent = sent;
	/* A large frame stands for several on the wire, each with its own headers: it will be split by the network card
	 * (GSO), or it was merged on arrival (GRO).
	 */
	frame.segments = skb->gso_segs ? skb->gso_segs : 1;
	frame.bytes = skb->len + (frame.segments - 1) * packet.headers;
	frame.payload = packet.payload;
	frame.sequence = packet.sequence;
	frame.flags = packet.flags;
	frame.pair.workload = *workload;
	frame.pair.owner = OWNER_WIRE;
	frame.pair.protocol = packet.protocol;
	frame.key = key_of(&frame);
	account_frame(&frame);
	/* `leno_flow_sample` gets the key and looks the flow up again. So its arguments are plain numbers, whose values
	 * the verifier does not track, and the verifier need not check the call for each path through the code above.
	 */
	if (is_sampled(*workload))
		leno_flow_sample(skb, frame.key, frame.now,
				 ((__u64)packet.headers << 32) | packet.payload,
				 ((__u64)packet.sequence << 1) | sent);
}

#endif

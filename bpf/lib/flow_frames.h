// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Accounts for the frames of one interface: bytes as they are on the wire, each frame once, whatever it carries.
 *
 * A flow is a protocol, two addresses and, for TCP and UDP, two ports. TCP's states and endings are read from its flags:
 *
 *   SYN ─► NEW ─ SYN, ACK (client) or ACK of it (server) ─► ESTABLISHED ─ FIN ─► CLOSING ─ other FIN ─► CLOSED
 *    RST: CLOSED from any of them
 *
 * Of other protocols a flow is new while frames have gone in one direction alone; user space removes what has been
 * quiet. The sums of pairs are added to with each frame, so they do not depend on the table.
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

/* The frame goes on to what comes next at the hook: with tcx, and at the end of a classifier. */
#define NEXT_PROGRAM TC_ACT_UNSPEC

/* `marks` is changed as a part of the word that begins with `phase`, `retransmits` of the one that begins with it. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MARKS_SHIFT 16
#define RETRANSMITS_SHIFT 0
#else
#define MARKS_SHIFT 8
#define RETRANSMITS_SHIFT 16
#endif

/* Sets a mark; whether it was set before. */
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

/* A frame as the workload sees it. */
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

/* Which side began: with TCP the one that sends SYN alone. Of a connection that is under way already the side with the
 * lower port is taken for the server; of other protocols the sender of the first frame is the client.
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

/* A SYN alone; or a first frame of a connection that was there before its interface was accounted for. */
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

/* The entry of a frame's flow, made if it is new; 0 if the table has no room, or another flow has the number. */
static __always_inline struct flow *flow_of_frame(struct frame *frame, bool *is_new)
{
	struct flow *flow = flow_of(&frame->key), fresh = {};

	/* The ports of a connection that has ended serve the next one. */
	if (flow && is_of(flow, frame) && !(flow_state_of(flow) == FLOW_CLOSED && begins(frame))) {
		frame->pair.role = flow_role_of(flow);
		frame->pair.peer = flow->peer;
		return flow;
	}
	frame->pair.role = role_of(frame);
	/* What is not IP has no addresses. */
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

/* The sequence number after what a frame sends; SYN and FIN take one. */
static __always_inline __u32 after(const struct frame *frame)
{
	return frame->sequence + frame->payload + !!(frame->flags & (TCP_SYN | TCP_FIN));
}

/* The word that is added to has `rtt` as well, which stays as it is: CPUs that add at once, as many as could be, add less than
 * what is left above the bound. Readers show no more than the bound.
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

/* What a frame of TCP does to the state of its connection. `flow->last_ns` is still the time of the frame before. */
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
		/* Without its SYN it was there before. */
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
	/* What the network card, or the other end, will make of one large frame: each with its headers. */
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
	/* What is looked up once more is a number that the verifier does not know: it need not follow what comes before for
	 * each value.
	 */
	if (is_sampled(*workload))
		leno_flow_sample(skb, frame.key, frame.now,
				 ((__u64)packet.headers << 32) | packet.payload,
				 ((__u64)packet.sequence << 1) | sent);
}

#endif

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Captures one workload: steers its outbound connections into its proxy, and inbound ones from other workloads, too;
 * its datagrams if configured.
 *
 * Loaded once for each workload, with its own maps. The programs marked (proxy) are attached to the proxy's cgroup if
 * it has one of its own, sk_lookup to the network namespace, and the others to the workload's cgroup, which contains
 * the proxy's.
 */
#include <asm/socket.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../lib/abi.h"
#include "../lib/address.h"
#include "../lib/client.h"
#include "../lib/config.h"
#include "../lib/counters.h"
#include "../lib/datagram.h"
#include "../lib/excluded.h"
#include "../lib/listeners.h"
#include "../lib/original.h"
#include "../lib/packet.h"
#include "../lib/proxy.h"
#include "../lib/sockopt.h"
#include "../lib/verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ALLOW 1
#define DENY 0

/* The index of lo, which is the same in every network namespace (the kernel's LOOPBACK_IFINDEX). */
#define LOOPBACK_IFINDEX 1

/* Makes the system call fail with this error; with EPERM before Linux 5.18, which lacks the helper. */
static __always_inline int deny(int error)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_set_retval))
		bpf_set_retval(-error);
	return DENY;
}

/* Whether the socket is in another network namespace than the workload's. The proxy does not listen on the loopback
 * device of that one.
 */
static __always_inline bool is_foreign(struct bpf_sock_addr *ctx)
{
	return config.netns_cookie && bpf_get_netns_cookie(ctx) != config.netns_cookie;
}

/* Whether this connection must not be captured: it is the proxy's own, local, or excluded. */
static __always_inline bool is_exempt(struct bpf_sock_addr *ctx, const struct socket_address *to)
{
	if (outbound_verdict(to) == OUTBOUND_LOCAL || is_foreign(ctx)) {
		count(OUTBOUND_PASSED_LOCAL);
		return true;
	}
	if (is_by_proxy()) {
		count(OUTBOUND_PASSED_PROXY);
		return true;
	}
	if (is_excluded(to)) {
		count(OUTBOUND_PASSED_EXCLUDED);
		return true;
	}
	return false;
}

/* Whether the destination is a link-local IPv6 address that the proxy cannot connect to for the application, and that
 * must not be reached without the proxy. ICMPv6 is permitted: ping sockets are recognised by their protocol, and the
 * kernel's neighbour discovery does not run these programs.
 */
static __always_inline bool is_refused_link_local(struct bpf_sock_addr *ctx,
						   const struct socket_address *to)
{
	if (outbound_verdict(to) != OUTBOUND_LINK_LOCAL || ctx->protocol == IPPROTO_ICMPV6)
		return false;
	return !is_foreign(ctx) && !is_by_proxy() && !is_excluded(to);
}

static __always_inline int refuse_link_local(void)
{
	count(OUTBOUND_DROPPED_LINK_LOCAL);
	return deny(ECONNREFUSED);
}

/* Removes the binding of a socket to a device, such as eth0, which could not reach the proxy on loopback. The proxy's
 * own connection follows the namespace's routes. Returns false if the binding remains.
 */
static __always_inline bool unbind_device(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	char none[1] = { 0 };

	if (!sk->bound_dev_if)
		return true;
	return !bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTODEVICE, none, sizeof(none));
}

/* Decides on one connect(). If *steer is true afterwards, the caller rewrites the destination to the proxy. */
static __always_inline int outbound(struct bpf_sock_addr *ctx, struct socket_address *to,
				    enum listener_slot slot, bool *steer)
{
	struct bpf_sock *sk = ctx->sk;

	*steer = false;
	if (!sk)
		return ALLOW;
	if (is_exempt(ctx, to)) {
		bpf_sk_storage_delete(&originals, sk); /* left by an earlier connect() */
		return ALLOW;
	}
	if (is_listening(slot) && unbind_device(ctx, sk) && remember_original(sk, to)) {
		count(OUTBOUND_CAPTURED);
		*steer = true;
		return ALLOW;
	}
	bpf_sk_storage_delete(&originals, sk);
	if (config.fail_closed) {
		count(OUTBOUND_REFUSED);
		return deny(ECONNREFUSED);
	}
	count(OUTBOUND_PASSED_OPEN);
	return ALLOW;
}

/* Decides on datagrams to this address. *number is the placeholder to which the caller rewrites it, or NO_PLACEHOLDER.
 * Only the proxy receives datagrams at placeholders: while it is not running, the kernel refuses them.
 */
static __always_inline int outbound_datagram(struct bpf_sock_addr *ctx,
					     const struct socket_address *to, __u32 *number)
{
	*number = NO_PLACEHOLDER;
	if (is_own_datagram(to) || is_foreign(ctx) || is_by_proxy() || is_excluded(to))
		return ALLOW;
	*number = placeholder_of(to);
	if (*number != NO_PLACEHOLDER)
		return ALLOW;
	count(DATAGRAM_REFUSED);
	return deny(ECONNREFUSED);
}

/* The same for connect(). It also stores the destination, which getpeername must return. */
static __always_inline int connect_datagram(struct bpf_sock_addr *ctx, struct socket_address *to,
					    __u32 *number)
{
	struct bpf_sock *sk = ctx->sk;
	int verdict = outbound_datagram(ctx, to, number);

	if (!sk)
		return verdict;
	if (*number == NO_PLACEHOLDER) {
		bpf_sk_storage_delete(&originals, sk); /* left by an earlier connect() */
		return verdict;
	}
	if (unbind_device(ctx, sk) && remember_original(sk, to))
		return ALLOW;
	*number = NO_PLACEHOLDER;
	count(DATAGRAM_REFUSED);
	return deny(ECONNREFUSED);
}

/* The same for a datagram that is sent without connect(). It is refused if the socket is bound to a device: it could
 * not reach loopback, and this hook cannot remove the binding.
 */
static __always_inline int send_datagram(struct bpf_sock_addr *ctx, struct socket_address *to,
					 __u32 *number)
{
	struct bpf_sock *sk = ctx->sk;
	int verdict = outbound_datagram(ctx, to, number);

	if (*number == NO_PLACEHOLDER || !sk || !sk->bound_dev_if)
		return verdict;
	*number = NO_PLACEHOLDER;
	count(DATAGRAM_REFUSED);
	return deny(ECONNREFUSED);
}

static __always_inline void rewrite_ipv4(struct bpf_sock_addr *ctx, __u32 number)
{
	ctx->user_ip4 = bpf_htonl(PLACEHOLDER_V4 | number);
	ctx->user_port = bpf_htons(config.outbound_port);
}

static __always_inline void rewrite_ipv6(struct bpf_sock_addr *ctx, __u32 number, bool ipv4)
{
	ctx->user_ip6[0] = ipv4 ? 0 : PLACEHOLDER_V6_0;
	ctx->user_ip6[1] = ipv4 ? 0 : PLACEHOLDER_V6_1;
	ctx->user_ip6[2] = ipv4 ? MAPPED_PREFIX : PLACEHOLDER_V6_2;
	ctx->user_ip6[3] = bpf_htonl(ipv4 ? PLACEHOLDER_V4 | number : number);
	ctx->user_port = bpf_htons(config.outbound_port);
}

SEC("cgroup/connect4")
int leno_connect4(struct bpf_sock_addr *ctx)
{
	struct socket_address to;
	bool steer;
	__u32 number;
	int verdict;

	to = ipv4_address(ctx->user_ip4, ctx->user_port);
	if (config.datagrams && ctx->protocol == IPPROTO_UDP) {
		verdict = connect_datagram(ctx, &to, &number);
		if (number != NO_PLACEHOLDER)
			rewrite_ipv4(ctx, number);
		return verdict;
	}
	if (ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	verdict = outbound(ctx, &to, SLOT_OUTBOUND_IPV4, &steer);
	if (steer) {
		ctx->user_ip4 = IPV4_LOOPBACK;
		ctx->user_port = bpf_htons(config.outbound_port);
	}
	return verdict;
}

SEC("cgroup/connect6")
int leno_connect6(struct bpf_sock_addr *ctx)
{
	struct socket_address to;
	bool steer, ipv4;
	__u32 number;
	int verdict;

	to = ipv6_address(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3],
			  ctx->user_port);
	if (is_refused_link_local(ctx, &to))
		return refuse_link_local();
	if (config.datagrams && ctx->protocol == IPPROTO_UDP) {
		verdict = connect_datagram(ctx, &to, &number);
		if (number != NO_PLACEHOLDER)
			rewrite_ipv6(ctx, number, to.family == LENO_AF_INET);
		return verdict;
	}
	if (ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	ipv4 = to.family == LENO_AF_INET; /* an IPv6 socket dials ::ffff:a.b.c.d */
	verdict = outbound(ctx, &to, ipv4 ? SLOT_OUTBOUND_IPV4 : SLOT_OUTBOUND_IPV6, &steer);
	if (steer) {
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = ipv4 ? MAPPED_PREFIX : 0;
		ctx->user_ip6[3] = ipv4 ? IPV4_LOOPBACK : bpf_htonl(1);
		ctx->user_port = bpf_htons(config.outbound_port);
	}
	return verdict;
}

/* sendto and sendmsg without connect(). Attached only if datagrams are captured. */
SEC("cgroup/sendmsg4")
int leno_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct socket_address to = ipv4_address(ctx->user_ip4, ctx->user_port);
	__u32 number;
	int verdict;

	if (!config.datagrams || ctx->protocol != IPPROTO_UDP)
		return ALLOW;
	verdict = send_datagram(ctx, &to, &number);
	if (number != NO_PLACEHOLDER)
		rewrite_ipv4(ctx, number);
	return verdict;
}

/* sendto and sendmsg without connect(). Always attached, because datagrams to link-local addresses must not bypass the
 * proxy even if datagrams are not captured. For a datagram to an IPv4-mapped address the kernel runs leno_sendmsg4.
 */
SEC("cgroup/sendmsg6")
int leno_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct socket_address to = ipv6_address(ctx->user_ip6[0], ctx->user_ip6[1],
						ctx->user_ip6[2], ctx->user_ip6[3], ctx->user_port);

	__u32 number;
	int verdict;

	if (is_refused_link_local(ctx, &to))
		return refuse_link_local();
	if (!config.datagrams || ctx->protocol != IPPROTO_UDP || to.family == LENO_AF_INET)
		return ALLOW;
	verdict = send_datagram(ctx, &to, &number);
	if (number != NO_PLACEHOLDER)
		rewrite_ipv6(ctx, number, false);
	return verdict;
}

/* Sets the source address of an answer that the application sees. Attached only if datagrams are captured. */
SEC("cgroup/recvmsg4")
int leno_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct socket_address from = ipv4_address(ctx->user_ip4, ctx->user_port);
	struct socket_address *shown = shown_for(&from);

	if (shown && shown->family == LENO_AF_INET) {
		ctx->user_ip4 = shown->ip[3];
		ctx->user_port = shown->port;
	}
	return ALLOW;
}

/* Sets the source address that an IPv6 socket sees, also of a datagram that arrived over IPv4. */
SEC("cgroup/recvmsg6")
int leno_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct socket_address from = ipv6_address(ctx->user_ip6[0], ctx->user_ip6[1],
						  ctx->user_ip6[2], ctx->user_ip6[3], ctx->user_port);
	struct socket_address *shown = shown_for(&from);

	if (shown) {
		ctx->user_ip6[0] = shown->ip[0];
		ctx->user_ip6[1] = shown->ip[1];
		ctx->user_ip6[2] = shown->ip[2];
		ctx->user_ip6[3] = shown->ip[3];
		ctx->user_port = shown->port;
	}
	return ALLOW;
}

/* Drops packets from the network that claim to be from an address that only exists inside this namespace
 * (is_forged_source): the application and its proxy recognise each other's datagrams by these. Attached only if
 * datagrams are captured.
 */
SEC("cgroup_skb/ingress")
int leno_datagram_ingress(struct __sk_buff *skb)
{
	struct socket_address from, to;
	__be32 ips[8];

	if (skb->ifindex == LOOPBACK_IFINDEX)
		return ALLOW;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, offsetof(struct ipv6_start, from), ips, sizeof(ips)))
			return DENY;
		from = ipv6_address(ips[0], ips[1], ips[2], ips[3], 0);
		to = ipv6_address(ips[4], ips[5], ips[6], ips[7], 0);
	} else {
		if (bpf_skb_load_bytes(skb, offsetof(struct ipv4_start, from), ips, 8))
			return DENY;
		from = ipv4_address(ips[0], 0);
		to = ipv4_address(ips[1], 0);
	}
	if (!is_forged_source(&from, &to))
		return ALLOW;
	count(INBOUND_DROPPED_FORGED);
	return DENY;
}

/* The address that the application sees as its peer: for a captured socket the address that it dialled; for a
 * connection that the proxy made to the application, the client's address.
 */
static __always_inline struct socket_address *peer_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return 0;
	if (ctx->user_port == bpf_htons(config.outbound_port))
		return original_of(sk);
	return client_of(sk);
}

/* Also runs in accept(). An IPv4 socket cannot represent an IPv6 client, so it shows the stand-in address. */
SEC("cgroup/getpeername4")
int leno_getpeername4(struct bpf_sock_addr *ctx)
{
	struct socket_address *peer = peer_of(ctx);

	if (peer && peer->family == LENO_AF_INET) {
		ctx->user_ip4 = peer->ip[3];
		ctx->user_port = peer->port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int leno_getpeername6(struct bpf_sock_addr *ctx)
{
	struct socket_address *peer = peer_of(ctx);

	if (peer) {
		ctx->user_ip6[0] = peer->ip[0];
		ctx->user_ip6[1] = peer->ip[1];
		ctx->user_ip6[2] = peer->ip[2];
		ctx->user_ip6[3] = peer->ip[3];
		ctx->user_port = peer->port;
	}
	return ALLOW;
}

/* Refuses MPTCP: such a socket connects through subflows of its own, to which neither getpeername nor the stored
 * destination applies. Applications that request MPTCP fall back to TCP if it is not available.
 */
SEC("cgroup/sock_create")
int leno_sock_create(struct bpf_sock *sk)
{
	if (sk->protocol != IPPROTO_MPTCP)
		return ALLOW;
	count(MPTCP_REFUSED);
	return deny(EPROTONOSUPPORT);
}

SEC("sockops")
int leno_app_sockops(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		announce_original(ops);
	else if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accept_client(ops);
	return 1;
}

/* (proxy) */
SEC("sockops")
int leno_proxy_sockops(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accept_original(ops);
	else if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		announce_client(ops);
	else if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB && is_of_proxy(ops))
		register_listener(ops);
	return 1;
}

/* Answers which destination a placeholder represents; the name of the option is the placeholder's number. If it
 * represents none, the error of the kernel, ENOPROTOOPT, remains.
 */
static __always_inline int answer_target(struct bpf_sockopt *ctx)
{
	__u32 number = ctx->optname;
	struct socket_address *target = bpf_map_lookup_elem(&targets, &number);
	struct sockaddr_in6 *to = ctx->optval;
	__s32 length = sizeof(*to);

	if (!target || (void *)(to + 1) > ctx->optval_end)
		return ALLOW;
	*to = (struct sockaddr_in6){ .sin6_family = LENO_AF_INET6, .sin6_port = target->port };
	to->sin6_addr.in6_u.u6_addr32[0] = target->ip[0];
	to->sin6_addr.in6_u.u6_addr32[1] = target->ip[1];
	to->sin6_addr.in6_u.u6_addr32[2] = target->ip[2];
	to->sin6_addr.in6_u.u6_addr32[3] = target->ip[3];
	/* See the barriers in leno_getsockopt. */
	barrier_var(length);
	ctx->optlen = length;
	barrier();
	ctx->retval = 0;
	return ALLOW;
}

/* (proxy) */
SEC("cgroup/getsockopt")
int leno_getsockopt(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct socket_address original;
	__s32 length;

	if (config.datagrams && ctx->level == CLIENT_LEVEL && is_by_proxy())
		return answer_target(ctx);
	if (ctx->optname != SO_ORIGINAL_DST || (ctx->level != SOL_IP && ctx->level != SOL_IPV6)) {
		if (ctx->optlen > MAX_OPTLEN)
			ctx->optlen = 0;
		return ALLOW;
	}
	if (!sk || !is_by_proxy() || !find_original(sk, &original))
		return ALLOW;
	length = write_original(ctx, &original);
	if (!length)
		return ALLOW;
	/* These barriers keep clang from merging the two stores into one through a modified context pointer, which the
	 * verifier rejects.
	 */
	barrier_var(length);
	ctx->optlen = length;
	barrier();
	ctx->retval = 0;
	count(ORIGINAL_ANSWERED);
	return ALLOW;
}

/* (proxy) Stores the address of the client for which this socket will connect to the application. Without this program
 * the kernel returns ENOPROTOOPT.
 */
SEC("cgroup/setsockopt")
int leno_setsockopt(struct bpf_sockopt *ctx)
{
	struct sockaddr_in6 *named = ctx->optval;
	struct bpf_sock *sk = ctx->sk;
	struct socket_address client;

	if (ctx->level != CLIENT_LEVEL || ctx->optname != CLIENT_OPTION) {
		if (ctx->optlen > MAX_OPTLEN)
			ctx->optlen = 0;
		return ALLOW;
	}
	if (!sk || !is_by_proxy())
		return ALLOW;
	if ((void *)(named + 1) > ctx->optval_end)
		return DENY;
	client = ipv6_address(named->sin6_addr.in6_u.u6_addr32[0],
			      named->sin6_addr.in6_u.u6_addr32[1],
			      named->sin6_addr.in6_u.u6_addr32[2],
			      named->sin6_addr.in6_u.u6_addr32[3], named->sin6_port);
	if (!remember_client(sk, &client))
		return DENY;
	ctx->optlen = -1; /* handled: the kernel does not process the option */
	return ALLOW;
}

/* Steers the connection to the proxy. If the proxy does not listen, `fail_closed` decides. */
static __always_inline int steer_inbound(struct bpf_sk_lookup *ctx, enum listener_slot slot)
{
	struct bpf_sock *sk = listener_in(slot);
	long error;

	if (!sk) {
		count(config.fail_closed ? INBOUND_REFUSED : INBOUND_PASSED_OPEN);
		return config.fail_closed ? SK_DROP : SK_PASS;
	}
	error = bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	if (error) {
		count(INBOUND_FAILED);
		return SK_DROP;
	}
	count(INBOUND_CAPTURED);
	return SK_PASS;
}

/* Decides on UDP that arrives for an unconnected socket. From an excluded address it always passes. Otherwise it is
 * dropped if it is sent to a link-local address, or if datagrams are captured and this one bypasses the mesh.
 */
static __always_inline int datagram(struct bpf_sk_lookup *ctx, const struct socket_address *remote,
				    const struct socket_address *local)
{
	if (is_excluded(remote))
		return SK_PASS;
	if (is_link_local_ipv6(local) && !same_ip(remote, local)) {
		count(INBOUND_DROPPED_LINK_LOCAL);
		return SK_DROP;
	}
	if (config.datagrams && is_plain_datagram(remote, ctx->remote_port, local, ctx->local_port)) {
		count(INBOUND_DROPPED_DATAGRAM);
		return SK_DROP;
	}
	return SK_PASS;
}

SEC("sk_lookup")
int leno_sk_lookup(struct bpf_sk_lookup *ctx)
{
	struct socket_address remote, local;
	bool ipv4 = ctx->family == LENO_AF_INET;

	if (ipv4) {
		remote = ipv4_address(ctx->remote_ip4, 0);
		local = ipv4_address(ctx->local_ip4, 0);
	} else {
		remote = ipv6_address(ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2],
				      ctx->remote_ip6[3], 0);
		local = ipv6_address(ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2],
				     ctx->local_ip6[3], 0);
	}
	if (ctx->protocol != IPPROTO_TCP)
		return datagram(ctx, &remote, &local);
	switch (inbound_verdict(&config, &remote, &local, ctx->local_port)) {
	case INBOUND_LOCAL:
		count(INBOUND_PASSED_LOCAL);
		return SK_PASS;
	case INBOUND_ADMIN:
		count(INBOUND_PASSED_ADMIN);
		return SK_PASS;
	case INBOUND_LINK_LOCAL:
		count(INBOUND_DROPPED_LINK_LOCAL);
		return SK_DROP;
	case INBOUND_MESH_PORT:
		count(INBOUND_DROPPED_MESH_PORT);
		return SK_DROP;
	default:
		return steer_inbound(ctx, ipv4 ? SLOT_INBOUND_IPV4 : SLOT_INBOUND_IPV6);
	}
}

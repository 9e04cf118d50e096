// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Capture of one workload: its connections into its proxy, and those of others too.
 *
 * Loaded once for each workload with maps of its own. The hooks marked (proxy) are attached to the
 * proxy's cgroup where it has one of its own, sk_lookup to the network namespace, the others to the
 * workload's cgroup, which holds the proxy's.
 */
#include <asm/socket.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../lib/abi.h"
#include "../lib/address.h"
#include "../lib/config.h"
#include "../lib/counters.h"
#include "../lib/excluded.h"
#include "../lib/listeners.h"
#include "../lib/original.h"
#include "../lib/proxy.h"
#include "../lib/sockopt.h"
#include "../lib/verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ALLOW 1
#define DENY 0

/* Fails the system call with this error; with EPERM before Linux 5.18, which has no helper. */
static __always_inline int deny(int error)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_set_retval))
		bpf_set_retval(-error);
	return DENY;
}

/* Another namespace's loopback is not where the proxy listens. */
static __always_inline bool is_foreign(struct bpf_sock_addr *ctx)
{
	return config.netns_cookie && bpf_get_netns_cookie(ctx) != config.netns_cookie;
}

/* Whether this connection stays as it is: the proxy's own, local, or excluded. */
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

/* A socket bound to eth0 cannot reach loopback, so the binding goes; the proxy's connection takes the
 * route that the namespace has.
 */
static __always_inline bool unbind_device(struct bpf_sock_addr *ctx, struct bpf_sock *sk)
{
	char none[1] = { 0 };

	if (!sk->bound_dev_if)
		return true;
	return !bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTODEVICE, none, sizeof(none));
}

/* Decides one connect(); *steer tells the caller to rewrite the destination. */
static __always_inline int outbound(struct bpf_sock_addr *ctx, struct socket_address *to,
				    enum listener_slot slot, bool *steer)
{
	struct bpf_sock *sk = ctx->sk;

	*steer = false;
	if (!sk)
		return ALLOW;
	if (is_exempt(ctx, to)) {
		bpf_sk_storage_delete(&originals, sk); /* of an earlier connect() */
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

SEC("cgroup/connect4")
int leno_connect4(struct bpf_sock_addr *ctx)
{
	struct socket_address to;
	bool steer;
	int verdict;

	if (ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	to = ipv4_address(ctx->user_ip4, ctx->user_port);
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
	int verdict;

	if (ctx->protocol != IPPROTO_TCP)
		return ALLOW;
	to = ipv6_address(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3],
			  ctx->user_port);
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

/* The address the application dialled, for a captured socket. */
static __always_inline struct socket_address *dialled(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || ctx->user_port != bpf_htons(config.outbound_port))
		return 0;
	return original_of(sk);
}

SEC("cgroup/getpeername4")
int leno_getpeername4(struct bpf_sock_addr *ctx)
{
	struct socket_address *original = dialled(ctx);

	if (original) {
		ctx->user_ip4 = original->ip[3];
		ctx->user_port = original->port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int leno_getpeername6(struct bpf_sock_addr *ctx)
{
	struct socket_address *original = dialled(ctx);

	if (original) {
		ctx->user_ip6[0] = original->ip[0];
		ctx->user_ip6[1] = original->ip[1];
		ctx->user_ip6[2] = original->ip[2];
		ctx->user_ip6[3] = original->ip[3];
		ctx->user_port = original->port;
	}
	return ALLOW;
}

/* An MPTCP socket connects by subflows of its own, past getpeername and the stored destination.
 * Applications that ask for one fall back to TCP when there is none.
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
	return 1;
}

/* (proxy) */
SEC("sockops")
int leno_proxy_sockops(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accept_original(ops);
	else if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB && is_of_proxy(ops))
		register_listener(ops);
	return 1;
}

/* (proxy) */
SEC("cgroup/getsockopt")
int leno_getsockopt(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct socket_address original;
	__s32 length;

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
	/* Barriers: clang would merge the two stores into one through a moved context pointer, which
	 * the verifier refuses.
	 */
	barrier_var(length);
	ctx->optlen = length;
	barrier();
	ctx->retval = 0;
	count(ORIGINAL_ANSWERED);
	return ALLOW;
}

/* Hands the connection to the proxy; with no proxy listening the workload's policy decides. */
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

SEC("sk_lookup")
int leno_sk_lookup(struct bpf_sk_lookup *ctx)
{
	struct socket_address remote, local;
	bool ipv4 = ctx->family == LENO_AF_INET;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	if (ipv4) {
		remote = ipv4_address(ctx->remote_ip4, 0);
		local = ipv4_address(ctx->local_ip4, 0);
	} else {
		remote = ipv6_address(ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2],
				      ctx->remote_ip6[3], 0);
		local = ipv6_address(ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2],
				     ctx->local_ip6[3], 0);
	}
	switch (inbound_verdict(&config, &remote, &local, ctx->local_port)) {
	case INBOUND_LOCAL:
		count(INBOUND_PASSED_LOCAL);
		return SK_PASS;
	case INBOUND_ADMIN:
		count(INBOUND_PASSED_ADMIN);
		return SK_PASS;
	case INBOUND_MESH_PORT:
		count(INBOUND_DROPPED_MESH_PORT);
		return SK_DROP;
	default:
		return steer_inbound(ctx, ipv4 ? SLOT_INBOUND_IPV4 : SLOT_INBOUND_IPV6);
	}
}

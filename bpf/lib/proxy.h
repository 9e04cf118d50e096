// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Recognises the proxy: by its cgroup, or by its user if it has no cgroup of its own when the
 * workload is captured (a pod is captured before its containers have cgroups).
 */
#ifndef LENO_PROXY_H
#define LENO_PROXY_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "config.h"

/* The fields of the kernel's own structures that are read; their offsets are relocated for the running kernel (CO-RE).
 */
struct kernel_uid {
	__u32 val;
} __attribute__((preserve_access_index));

struct sock {
	struct kernel_uid sk_uid;
} __attribute__((preserve_access_index));

/* Whether the proxy makes this system call. */
static __always_inline bool is_by_proxy(void)
{
	if (config.proxy_cgroup_id)
		return bpf_get_current_cgroup_id() == config.proxy_cgroup_id;
	return (__u32)bpf_get_current_uid_gid() == config.proxy_uid;
}

/* Whether the proxy owns this socket. A sock_ops program cannot query which task makes the system call, so the user of
 * the socket is compared.
 */
static __always_inline bool is_of_proxy(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct sock *kernel;

	if (config.proxy_cgroup_id)
		return true; /* the program is attached to the proxy's cgroup */
	if (!sk)
		return false;
	kernel = (struct sock *)bpf_skc_to_tcp_sock(sk);
	return kernel && kernel->sk_uid.val == config.proxy_uid;
}

#endif

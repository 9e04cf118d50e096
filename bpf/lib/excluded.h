// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Destinations that the operator excluded from capture. */
#ifndef LENO_EXCLUDED_H
#define LENO_EXCLUDED_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "config.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_EXCLUDED);
	__type(key, struct prefix_key);
	__type(value, __u8);
} excluded SEC(".maps");

static __always_inline bool is_excluded(const struct socket_address *to)
{
	struct prefix_key key = {
		.length = 128,
		.ip = { to->ip[0], to->ip[1], to->ip[2], to->ip[3] },
	};

	return config.has_excluded && bpf_map_lookup_elem(&excluded, &key);
}

#endif

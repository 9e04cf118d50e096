// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The configuration of the workload these programs were loaded for. */
#ifndef LENO_CONFIG_H
#define LENO_CONFIG_H

#include <bpf/bpf_helpers.h>

#include "abi.h"

/* A section of its own, so that the loader writes the whole structure without symbol look-ups. */
SEC(".rodata.config") const volatile struct capture_config config;

#endif

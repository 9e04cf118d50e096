#!/usr/bin/env python3
"""Runs a command as on a kernel without Landlock: Landlock's system calls fail with ENOSYS. A proxy that records a profile writes
a file when it exits, which Landlock would forbid (scripts/profile-train.sh)."""

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS
LOAD, AT_LEAST, MORE_THAN, RETURN = 0x20, 0x35, 0x25, 0x06
# landlock_create_ruleset, landlock_add_rule and landlock_restrict_self have these numbers on every architecture.
FIRST, LAST = 444, 446


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


instructions = [
    (LOAD, 0, 0, 0),  # the number of the call
    (AT_LEAST, 0, 2, FIRST),
    (MORE_THAN, 1, 0, LAST),
    (RETURN, 0, 0, REFUSE),
    (RETURN, 0, 0, ALLOW),
]
code = b"".join(struct.pack("=HBBI", *one) for one in instructions)
prctl = ctypes.CDLL(None, use_errno=True).prctl
program = ctypes.byref(Program(len(instructions), code))
for arguments in (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
    if prctl(*arguments) != 0:
        sys.exit(f"{sys.argv[0]}: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])

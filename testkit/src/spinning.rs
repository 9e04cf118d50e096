//! Makes a thread use the CPU without end, as a loop in its program would. Only on x86-64.

use anyhow::Result;

use crate::tracer::Tracer;

/// Seizes a thread with ptrace(2) and sets its instruction pointer to an instruction that jumps to itself. The bytes of
/// such an instruction (eb fe) occur by chance in any program that is large enough, so the memory of the process need
/// not be changed, and its other threads are not affected. `orig_rax` is set to -1, so that the kernel does not restart
/// a system call that was interrupted. Then creates a file, and restores the registers once another file exists.
const SPIN: &str = "
import ctypes, os, sys, time
SEIZE, INTERRUPT, GETREGS, SETREGS, DETACH, WALL = 0x4206, 0x4207, 12, 13, 17, 0x40000000
ORIG_AX, IP, REGISTERS = 15, 16, 27
libc, thread = ctypes.CDLL(None, use_errno=True), int(sys.argv[3])
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
def trace(request, data=None):
    if libc.ptrace(request, thread, None, data) == -1:
        raise OSError(ctypes.get_errno(), 'ptrace')
def loop():
    with open(f'/proc/{thread}/maps') as maps, open(f'/proc/{thread}/mem', 'rb') as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if 'x' not in rights or '[v' in line:
                continue
            begin, end = (int(part, 16) for part in span.split('-'))
            memory.seek(begin)
            at = memory.read(end - begin).find(bytes([0xeb, 0xfe]))
            if at >= 0:
                return begin + at
    raise SystemExit('no instruction that jumps to itself')
def stop():
    trace(SEIZE)
    trace(INTERRUPT)
    os.waitpid(thread, WALL)
stop()
before = (ctypes.c_ulong * REGISTERS)()
trace(GETREGS, before)
spins = (ctypes.c_ulong * REGISTERS)(*before)
spins[ORIG_AX], spins[IP] = 2**64 - 1, loop()
trace(SETREGS, spins)
trace(DETACH)
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
stop()
trace(SETREGS, before)
trace(DETACH)
";

/// A thread that spins. It spins until [`resume`](Self::resume) is called, even if this value is dropped before.
#[derive(Debug)]
pub struct SpinningThread(Tracer);

impl SpinningThread {
    /// Makes the thread with this ID spin.
    pub fn of(thread: &str) -> Result<Self> {
        Tracer::start(SPIN, &[thread.to_owned()]).map(Self)
    }

    /// Lets the thread continue where it was, and waits until it does.
    pub fn resume(self) -> Result<()> {
        self.0.finish()
    }
}

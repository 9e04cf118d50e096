//! Captures the packets of a network namespace with tcpdump, and classifies them.

mod packet;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use packet::{PayloadKind, Segment, classify, segments};

use crate::{binaries, netns, wait};

/// Longest capture file, in MB: enough for a test of some seconds, and too little to fill a disk.
const MAX_FILE_MB: &str = "256";
/// Longest packet that is kept whole: 64 KiB, which segmentation offload can produce, and the link header. The
/// kernel's buffer reserves a slot of this size for every packet, so a larger value would leave too few slots.
const SNAP_BYTES: &str = "66000";
/// The size of that buffer. It has space for about a thousand packets that tcpdump has not read yet.
const BUFFER_KIB: &str = "65536";
/// How long tcpdump may take to start or to end.
const LIMIT: Duration = Duration::from_secs(10);
/// The destination of the last connection in a capture (tcpmux, which no server uses).
const SENTINEL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// A tcpdump of all TCP packets in one network namespace. Dropping this ends tcpdump.
#[derive(Debug)]
pub struct Sniffer {
    tcpdump: Child,
    file: PathBuf,
    namespace: PathBuf,
    /// tcpdump's standard error after the first line, which is available once tcpdump has ended.
    last_words: Option<JoinHandle<String>>,
    _directory: tempfile::TempDir,
}

impl Sniffer {
    /// Starts a capture in the network namespace of the file `namespace` (see [`netns::path`]). Returns when
    /// packets are being captured.
    pub fn start(namespace: &Path) -> Result<Self> {
        let program = binaries::require("tcpdump", "tcpdump")?;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("packets.pcap");
        let mut tcpdump = netns::inside(namespace, || {
            Command::new(program)
                .args(["-i", "any", "-U", "-n", "--immediate-mode", "-Z", "root"])
                .args(["-s", SNAP_BYTES, "-B", BUFFER_KIB, "-C", MAX_FILE_MB, "-W", "1", "-w"])
                .arg(&file)
                .arg("tcp")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .context("cannot start tcpdump")
        })?;
        let stderr = tcpdump.stderr.take().context("tcpdump has no standard error")?;
        let mut said = String::new();
        let mut lines = BufReader::new(stderr);
        while !said.contains("listening on") {
            if lines.read_line(&mut said)? == 0 {
                // tcpdump has ended, and must be reaped.
                let _ = tcpdump.wait();
                bail!("tcpdump: {}", said.trim());
            }
        }
        // The thread reads on, so that tcpdump never blocks on a full pipe. It ends with tcpdump.
        let last_words = Some(std::thread::spawn(move || {
            let mut words = String::new();
            // If this fails, `stop` does not find tcpdump's summary, and reports that.
            let _ = lines.read_to_string(&mut words);
            words
        }));
        let namespace = namespace.to_path_buf();
        Ok(Sniffer { tcpdump, file, namespace, last_words, _directory: directory })
    }

    /// Ends the capture and returns its segments. Fails if packets were lost.
    pub fn stop(mut self) -> Result<Vec<Segment>> {
        self.catch_up()?;
        self.interrupt()?;
        let words = self.last_words.take().and_then(|thread| thread.join().ok());
        let words = words.unwrap_or_default();
        if !words.lines().any(|line| line == "0 packets dropped by kernel") {
            bail!("the capture is not complete: {words}");
        }
        segments(&self.read()?)
    }

    /// Waits until everything that was sent so far is in the file, because an interrupted tcpdump discards what it
    /// has not read yet. This connects to a port where no server listens, and waits until that connection is in
    /// the file. Each attempt connects again, because the kernel drops packets while tcpdump's buffer is full.
    fn catch_up(&self) -> Result<()> {
        wait::until("tcpdump to catch up", LIMIT, || {
            netns::inside(&self.namespace, || match TcpStream::connect(SENTINEL) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
                other => bail!("the sentinel connection was not refused: {other:?}"),
            })?;
            // While tcpdump writes, the file may end inside a packet.
            let found = segments(&self.read()?).unwrap_or_default();
            Ok(found.iter().any(|s| s.to == SENTINEL).then_some(()))
        })
    }

    fn read(&self) -> Result<Vec<u8>> {
        // With the options -C and -W, tcpdump appends a number to the name of the file.
        let numbered = self.file.with_extension("pcap0");
        let file = if numbered.exists() { &numbered } else { &self.file };
        fs::read(file).with_context(|| format!("no {}", file.display()))
    }

    fn interrupt(&mut self) -> Result<()> {
        if self.tcpdump.try_wait()?.is_none() {
            kill(Pid::from_raw(i32::try_from(self.tcpdump.id())?), Signal::SIGINT)?;
            wait::until("the end of tcpdump", LIMIT, || Ok(self.tcpdump.try_wait()?))?;
        }
        Ok(())
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        if self.interrupt().is_err() {
            // tcpdump has ignored the interrupt or has ended. In both cases nothing of it may be left.
            let _ = self.tcpdump.kill();
            let _ = self.tcpdump.wait();
        }
    }
}

#[cfg(test)]
mod tests;

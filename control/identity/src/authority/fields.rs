//! Sets the fields that a root and a workload's certificate have in common.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, SerialNumber};

/// How many bytes a serial number has: 126 random bits, which is below the 20 bytes that RFC 5280 section 4.1.2.2
/// permits.
const SERIAL_LEN: usize = 16;

/// Parameters of a certificate with this validity and a random serial number. All other fields have their
/// defaults.
pub(super) fn params(from: SystemTime, to: SystemTime) -> Result<CertificateParams, rcgen::Error> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.not_before = epoch + since_epoch(from);
    params.not_after = epoch + since_epoch(to);
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    Ok(params)
}

/// A time with the precision of certificates: whole seconds, rounded down.
pub(super) fn seconds(time: SystemTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + since_epoch(time)
}

/// A positive random number without a leading zero byte.
pub(super) fn random_serial() -> Result<[u8; SERIAL_LEN], rcgen::Error> {
    let mut serial = [0; SERIAL_LEN];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| rcgen::Error::RingUnspecified)?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

/// The time since 1970. A clock before 1970 is treated as 1970; no certificate is valid then.
pub(super) fn since_epoch(time: SystemTime) -> Duration {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(since.as_secs())
}

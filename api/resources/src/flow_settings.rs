//! Parses settings of the accounting for flows.

use crate::FLOW_MAP_SIZE_ANNOTATION;

/// The largest number of flows in a table, and of changes that may wait for their reader.
pub const MAX_FLOW_SIZE: u32 = 1 << 20;
/// The kernel memory of a flow in the table, and of a change that waits, in bytes.
const FLOW_BYTES: u64 = 152;
const CHANGE_BYTES: u64 = 104;

/// Parses a share of the machine's CPU time such as `0.2%`: above 0 and at most 1. `None` if the text is not such a
/// share.
#[must_use]
pub fn cpu_share(text: &str) -> Option<f64> {
    let percent = text.strip_suffix('%')?.parse::<f64>().ok()?;
    (percent > 0.0 && percent <= 100.0).then_some(percent / 100.0)
}

/// Parses the value of `leno.dev/flow-map-size` or `leno.dev/flow-ring-size`.
///
/// # Errors
/// The text is not a number, or the number is 0 or too large. In the last case the message names the kernel memory that
/// it would take.
pub fn flow_size(key: &str, text: &str) -> Result<u32, String> {
    let (what, bytes) = match key {
        FLOW_MAP_SIZE_ANNOTATION => ("flows", FLOW_BYTES),
        _ => ("changes", CHANGE_BYTES),
    };
    let megabytes = |number: u64| number.saturating_mul(bytes).div_ceil(1_000_000);
    match text.parse::<u64>() {
        Ok(number @ 1..) => u32::try_from(number).ok().filter(|size| *size <= MAX_FLOW_SIZE).ok_or_else(|| {
            format!(
                "{number} {what} are too many: they would take {} MB of kernel memory; the most is {MAX_FLOW_SIZE}, \
                 which takes {} MB",
                megabytes(number),
                megabytes(MAX_FLOW_SIZE.into())
            )
        }),
        _ => Err(format!("{text:?} is not a number of {what}: use 1 to {MAX_FLOW_SIZE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FLOW_RING_SIZE_ANNOTATION;

    #[test]
    fn sizes_above_the_bound_are_refused_with_the_memory_they_would_take() {
        assert_eq!(flow_size(FLOW_MAP_SIZE_ANNOTATION, "65536"), Ok(65_536));
        assert_eq!(flow_size(FLOW_RING_SIZE_ANNOTATION, "1048576"), Ok(MAX_FLOW_SIZE));
        assert_eq!(
            flow_size(FLOW_MAP_SIZE_ANNOTATION, "2000000").unwrap_err(),
            "2000000 flows are too many: they would take 304 MB of kernel memory; the most is 1048576, which takes 160 MB"
        );
        for text in ["0", "-1", "many", "", "1e6"] {
            let error = flow_size(FLOW_RING_SIZE_ANNOTATION, text).unwrap_err();
            assert!(error.contains("not a number of changes"), "{error}");
        }
    }

    #[test]
    fn shares_are_percentages_above_zero() {
        assert_eq!([cpu_share("1%"), cpu_share("100%")], [Some(0.01), Some(1.0)]);
        assert!(["1", "0%", "101%", "-1%", "x%", "%"].iter().all(|text| cpu_share(text).is_none()));
    }
}

//! Tables from records.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leno_suite::statistics::median;

use crate::record::Record;

/// The proxies that ratios are calculated against.
const REFERENCES: [&str; 2] = ["haproxy", "envoy"];

/// One record as a line of progress.
pub(crate) fn line(r: &Record) -> String {
    let latency = r.latency_us.as_ref().map_or(String::new(), |l| format!("  p99 {} us", l.p99));
    format!(
        "round {}  {:<14} {:<10} {:<8} {:>8.0}/s  {:>5.1} + {:>5.1} us  errors {}{latency}{}",
        r.round,
        r.scenario,
        r.pace,
        r.proxy,
        r.requests_per_s,
        r.cpu_user_us_per_request,
        r.cpu_system_us_per_request,
        r.errors,
        if r.generator_limited { "  (load could not keep its schedule)" } else { "" }
    )
}

/// All tables that the records allow, as Markdown.
pub(crate) fn tables(records: &[Record]) -> String {
    let mut groups: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
    for r in records.iter().filter(|r| r.bench != "memory" && r.left_out.is_none()) {
        groups.entry((&r.scenario, &r.pace)).or_default().push(r);
    }
    let mut out = String::new();
    for ((scenario, pace), group) in groups {
        hop_table(&mut out, &format!("{scenario}, {pace}"), &group);
    }
    left_out(&mut out, records);
    let memory: Vec<_> = records.iter().filter(|r| r.bench == "memory").collect();
    if !memory.is_empty() {
        memory_table(&mut out, &memory);
    }
    out
}

fn hop_table(out: &mut String, title: &str, group: &[&Record]) {
    let mut proxies: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for r in group {
        proxies.entry(&r.proxy).or_default().push(r);
    }
    let mut add = |text: String| out.push_str(&text);
    add(format!(
        "\n**{title}**\n\n| proxy | CPU us/request: median (min..max) | user + system | \
         CPU / {}: median (min..max) | CPU / {} | requests/s | p50 us | p99 us | CPU share | errors |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        REFERENCES[0], REFERENCES[1]
    ));
    for (name, records) in &proxies {
        let latency = |pick: fn(&leno_testkit::load::Latency) -> u64| {
            let values: Vec<f64> =
                records.iter().filter_map(|r| Some(pick(r.latency_us.as_ref()?) as f64)).collect();
            if values.is_empty() { "-".into() } else { format!("{:.0}", Spread::of(values).median) }
        };
        let of = |pick: fn(&Record) -> f64| Spread::of(records.iter().map(|r| pick(r)).collect());
        let cpu = if *name == "none" { "-".into() } else { of(Record::cpu_us_per_request).text(1) };
        add(format!(
            "| {name} | {cpu} | {:.1} + {:.1} | {} | {} | {:.0} | {} | {} | {:.2} | {} |\n",
            of(|r| r.cpu_user_us_per_request).median,
            of(|r| r.cpu_system_us_per_request).median,
            ratio(records, proxies.get(REFERENCES[0])),
            ratio(records, proxies.get(REFERENCES[1])),
            of(|r| r.requests_per_s).median,
            latency(|l| l.p50),
            latency(|l| l.p99),
            of(|r| r.cpu_share).median,
            records.iter().map(|r| r.errors).sum::<u64>(),
        ));
    }
}

/// Lists the contenders that were not measured, and why.
fn left_out(out: &mut String, records: &[Record]) {
    let missing: Vec<_> = records.iter().filter_map(|r| Some((r, r.left_out.as_ref()?))).collect();
    if !missing.is_empty() {
        out.push_str("\nLeft out:\n");
    }
    for (r, why) in missing {
        writeln!(out, "- {}, {}: {why}", r.scenario, r.proxy)
            .expect("writing to a string cannot fail");
    }
}

/// CPU in relation to the reference, round by round: a disturbance in a round affects both.
fn ratio(records: &[&Record], reference: Option<&Vec<&Record>>) -> String {
    let ratios: Vec<f64> = records
        .iter()
        .filter_map(|r| {
            let other = reference?.iter().find(|other| other.round == r.round)?;
            let ratio = r.cpu_us_per_request() / other.cpu_us_per_request();
            (ratio.is_finite() && ratio > 0.0).then_some(ratio)
        })
        .collect();
    if ratios.is_empty() { "-".into() } else { Spread::of(ratios).text(2) }
}

fn memory_table(out: &mut String, records: &[&Record]) {
    out.push_str(
        "\n**Memory, KiB** (private: shared with no other process; proportional: shared pages divided among \
         their processes)\n\n| proxies | connections each | kind | idle | connections open | after they closed |\n\
         |---|---|---|---|---|---|\n",
    );
    for r in records {
        let kinds =
            [("private", r.private_kib), ("proportional", r.pss_kib), ("resident", r.rss_kib)];
        for (kind, at) in kinds {
            writeln!(
                out,
                "| {} {} | {} | {kind} | {} | {} | {} |",
                r.copies,
                r.proxy,
                r.connections,
                at.idle,
                at.connections_open,
                at.connections_closed,
            )
            .expect("writing to a string cannot fail");
        }
    }
}

/// Median, smallest and largest value.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: Vec<f64>) -> Self {
        let least = values.iter().copied().reduce(f64::min);
        let most = values.iter().copied().reduce(f64::max);
        let (min, max) = (least.unwrap_or_default(), most.unwrap_or_default());
        Spread { median: median(&values), min, max }
    }

    fn text(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}..{:.digits$})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(proxy: &str, round: u32, cpu: f64) -> Record {
        Record {
            bench: "http".into(),
            scenario: "s".into(),
            pace: "rate".into(),
            proxy: proxy.into(),
            round,
            cpu_user_us_per_request: cpu,
            ..Record::default()
        }
    }

    #[test]
    fn ratios_are_made_round_by_round() {
        let records = [
            record("haproxy", 0, 20.0),
            record("leno", 0, 10.0),
            record("haproxy", 1, 40.0),
            record("leno", 1, 30.0),
            record("leno", 2, 999.0),
        ];
        let text = tables(&records);
        assert!(text.contains("| 0.62 (0.50..0.75) |"), "{text}");
        assert!(text.contains("| 1.00 (1.00..1.00) | - |"), "{text}");
    }

    #[test]
    fn who_was_left_out_is_said_and_not_counted() {
        let missing = Record { left_out: Some("not there".into()), ..record("envoy", 0, 0.0) };
        let text = tables(&[record("haproxy", 0, 20.0), missing]);
        assert!(text.contains("- s, envoy: not there"), "{text}");
        assert!(!text.contains("| envoy |"), "{text}");
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).text(1), "2.5 (1.0..4.0)");
    }
}

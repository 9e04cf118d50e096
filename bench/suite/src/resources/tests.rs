//! Checks the analysis with a small sequence that was calculated by hand, with corner cases, and with the published
//! data if they are available.

use super::*;
use std::fs;

/// Files for 60, 120 and 240 requests/s, with two runs each.
fn small() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, cells: &[(&str, &str)]| {
        let rows = cells
            .iter()
            .enumerate()
            .map(|(nth, (cpu, memory))| format!("2025-01-01 00:00:{nth:02},{cpu},{memory},\n"));
        let text =
            "timestamp,proxy CPU,proxy mem,absent CPU\n".to_owned() + &rows.collect::<String>();
        fs::write(folder.path().join(name), text).unwrap();
    };
    // The mean is 5, so 5, 6, 6 and 14 are kept. Their mean is 7.75 and their deviation 3.63, so 14 is dropped and 5,
    // 6, 6 are kept.
    write(
        "60-1-metrics.csv",
        &[("5", "7"), ("6", "7"), ("6", "7"), ("14", "7"), ("1", "7"), ("1", "7"), ("2", "7")],
    );
    // The mean is 2, so 3 and 5 are kept. Both are exactly one deviation away from their mean, so both are kept.
    write("60-2-metrics.csv", &[("3", "9"), ("5", "9"), ("0", "9"), ("0", "9")]);
    for (rate, level) in [(120, "20"), (240, "80")] {
        for run in [1, 2] {
            write(&format!("{rate}-{run}-metrics.csv"), &[(level, "1"), (level, "")]);
        }
    }
    fs::write(folder.path().join("60-1-wrk2-abc.log"), "not a table").unwrap();
    folder
}

#[test]
fn a_small_sequence_has_the_means_computed_by_hand() {
    let folder = small();
    let analysis = analyse(&[folder.path()]).unwrap();
    let [sequence] = &analysis.sequences[..] else { panic!("one sequence") };
    assert_eq!(Some(sequence.name.as_str()), folder.path().file_name().unwrap().to_str());
    assert_eq!(sequence.columns.keys().collect::<Vec<_>>(), ["proxy CPU", "proxy mem"]);
    let cpu = &sequence.columns["proxy CPU"];
    let first = RunMean { rate: 60, run: 1, samples: 7, kept: 3, mean: 17.0 / 3.0 };
    assert_eq!(cpu.runs[0], first);
    assert_eq!(cpu.runs[1], RunMean { rate: 60, run: 2, samples: 4, kept: 2, mean: 4.0 });
    let wanted = BTreeMap::from([(60, f64::midpoint(17.0 / 3.0, 4.0)), (120, 20.0), (240, 80.0)]);
    assert_eq!(cpu.mean_by_rate, wanted);
    let [c0, c1, c2] = cpu.fit.unwrap();
    for (rate, level) in wanted {
        let rate = rate as f64;
        assert!((c0 + c1 * rate + c2 * rate * rate - level).abs() < 1e-9);
    }
    assert_eq!(sequence.columns["proxy mem"].runs[2].samples, 1, "empty cells are no samples");
}

#[test]
fn the_output_has_the_names_that_programs_rely_on() {
    let folder = small();
    let json = serde_json::to_value(analyse(&[folder.path()]).unwrap()).unwrap();
    let column = &json["sequences"][0]["columns"]["proxy CPU"];
    for name in ["rate", "run", "samples", "kept", "mean"] {
        assert!(column["runs"][0][name].is_number(), "{name}");
    }
    assert_eq!(column["mean_by_rate"]["120"], 20.0);
    assert_eq!(column["fit"].as_array().map(Vec::len), Some(3));
}

#[test]
fn samples_at_a_bound_stay() {
    // Equal samples count as equal to their mean in spite of rounding.
    assert_eq!(filter(&[0.1; 10]).len(), 10);
    assert_eq!(filter(&[0.7; 7]).len(), 7);
    // The two samples that are kept are exactly one deviation away from their mean.
    assert_eq!(filter(&[0.1, 0.2, 0.0, 0.0]).len(), 2);
    assert_eq!(filter(&[4.0]), [4.0]);
    assert_eq!(filter(&[]), [0.0; 0]);
}

#[test]
fn the_deviation_divides_by_n() {
    // The mean of 100, 100.1, 101, 101 is 100.525, so 100 is 0.525 away from it. The deviation is 0.476 with division
    // by n; with n - 1 it would be 0.55, and 100 would be kept.
    let samples = [100.0, 100.1, 101.0, 101.0, 50.0, 50.0, 50.0, 50.0];
    assert_eq!(filter(&samples), [100.1, 101.0, 101.0]);
}

#[test]
fn a_cell_that_is_no_number_is_named_with_its_line() {
    let folder = small();
    fs::write(folder.path().join("600-1-metrics.csv"), "timestamp,a CPU\nt,1\nt,lots\n").unwrap();
    let error = analyse(&[folder.path()]).unwrap_err().to_string();
    assert!(error.contains("line 3: a CPU: \"lots\" is no number"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(analyse(&[empty.path()]).unwrap_err().to_string().contains("RATE-RUN-metrics.csv"));
}

/// Checks the published data, if `LENO_GSD_DATA` names their folder. The expected averages by rate and coefficients
/// come from a calculation with exact fractions.
#[test]
fn the_published_sequences_give_their_averages() {
    let Some(data) = std::env::var_os("LENO_GSD_DATA") else {
        println!("skipped: LENO_GSD_DATA does not name the data");
        return;
    };
    let data = Path::new(&data);
    let analysis = analyse(&[data.join("ambient"), data.join("linkerd")]).unwrap();
    let ambient = [269969854.828, 542603103.212, 1120172770.110, 2574871125.089, 5185905945.358];
    let linkerd = [154569393.777, 299211808.451, 599910654.999, 1426553896.096, 2621416830.892];
    let wanted = [
        ("ambient", ambient, [39030828.200112, 4263510.429614, 17.794574458]),
        ("linkerd", linkerd, [-1007231.704154, 2573822.218888, -323.729251011]),
    ];
    for (sequence, (name, means, fit)) in analysis.sequences.iter().zip(wanted) {
        assert_eq!(sequence.name, name);
        let column = &sequence.columns["data-plane CPU"];
        assert_eq!(column.runs.len(), 25, "{name}: 5 runs at 5 rates");
        let rates: Vec<Rate> = column.mean_by_rate.keys().copied().collect();
        assert_eq!(rates, [60, 120, 240, 600, 1200]);
        for (found, wanted) in column.mean_by_rate.values().zip(means) {
            assert!((found - wanted).abs() < 0.001, "{name}: {found} is not {wanted}");
        }
        for (found, wanted) in column.fit.unwrap().iter().zip(fit) {
            assert!((found / wanted - 1.0).abs() < 1e-8, "{name}: {found} is not {wanted}");
        }
    }
}

//! `leno bench report`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use leno_console::print;
use leno_suite::report::{self, Brief, Form, Summary};
use leno_suite::{cost, files, picture, record};

/// Prints the report of a run, and writes it with charts beside the records
///
/// Writes report.html, which needs no other file, report.md, report.csv, and every chart in charts/ as SVG, and also
/// as PNG if rsvg-convert is installed. All of them are made from the records alone.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leno bench report bench\n  leno bench report bench -o csv | column -ts,\n  \
                  leno bench report bench --brief docs/figures"
)]
pub(crate) struct ReportOptions {
    /// Directory with the records of a run
    directory: PathBuf,

    /// The format of the printed report
    #[arg(short, long, value_enum, default_value_t)]
    output: ReportOutput,

    /// File with a table of prices, instead of the built-in table
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Prints the report and writes no file
    #[arg(long)]
    no_files: bool,

    /// Instead writes the summary of a run of one scenario, for a README, into this directory: one chart for light
    /// and one for dark pages, and overhead.md, which shows them with a small table and the command of the
    /// measurement
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "no_files", "prices"])]
    brief: Option<PathBuf>,
}

/// What is printed of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ReportOutput {
    /// For a terminal
    #[default]
    Table,
    /// One line per record
    Csv,
    /// Tables for a document
    Markdown,
    /// The records themselves
    Json,
}

pub(super) fn run(args: &ReportOptions) -> Result<bool> {
    let records = record::read(&args.directory)?;
    if let Some(folder) = &args.brief {
        return brief(&records, folder);
    }
    let summary = Summary::of(&records);
    let written = match args.no_files {
        true => String::new(),
        false => write(args, &records, &summary)?.join("\n"),
    };
    match args.output {
        ReportOutput::Csv => print(&report::csv(&records)?)?,
        ReportOutput::Markdown => print(&Form::MARKDOWN.of(&summary, &[]))?,
        ReportOutput::Json => leno_console::print_json(&records)?,
        ReportOutput::Table => {
            print(&format!("{}\n{written}\n", Form::TERMINAL.of(&summary, &[])))?;
        }
    }
    Ok(true)
}

/// Writes the brief report, and prints its page.
fn brief(records: &[record::Record], folder: &Path) -> Result<bool> {
    let brief = Brief::of(records, &folder.display().to_string())?;
    let [light, dark] = Brief::CHARTS;
    for (name, text) in
        [(light, &brief.light), (dark, &brief.dark), ("overhead.md", &brief.markdown)]
    {
        files::write(&folder.join(name), text)?;
    }
    print(&brief.markdown).map(|()| true)
}

/// Writes every form of the report beside the records; returns lines that name the files.
fn write(
    args: &ReportOptions,
    records: &[record::Record],
    summary: &Summary,
) -> Result<[String; 2]> {
    let charts = report::charts(summary, records, &cost::prices(args.prices.as_deref())?);
    let folder = args.directory.join("charts");
    let (extensions, forms): (&[&str], _) = match picture::draws_png() {
        true => (&["svg", "png"], "SVG and PNG"),
        false => (&["svg"], "SVG; for PNG: apt-get install -y librsvg2-bin"),
    };
    for chart in &charts {
        for extension in extensions {
            picture::write(&chart.svg, &folder.join(format!("{}.{extension}", chart.name)))?;
        }
    }
    for (name, text) in [
        ("report.html", Form::PAGE.of(summary, &charts)),
        ("report.md", Form::MARKDOWN.of(summary, &[])),
        ("report.csv", report::csv(records)?),
    ] {
        files::write(&args.directory.join(name), &text)?;
    }
    Ok([
        format!("page:   {}", args.directory.join("report.html").display()),
        format!("charts: {} ({forms})", folder.display()),
    ])
}

//! `leno bench report`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use leno_console::print;
use leno_suite::report::{self, Brief, Summary};
use leno_suite::{cost, picture, record};

use leno_suite::tabular::aligned;

/// Makes the report of a run: a table here, and a page with charts beside the records
///
/// Writes report.html, which needs no other file, report.md, report.csv, and every chart in charts/
/// as SVG, and also as PNG if rsvg-convert is installed. All of them are made from the records
/// alone.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leno bench report bench\n  leno bench report bench -o csv | column -ts,\n  \
                  leno bench report bench --brief docs/figures"
)]
pub(crate) struct Report {
    /// The directory of a run
    directory: PathBuf,

    /// The form of the printed report
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,

    /// A file with a table of prices, instead of the built-in one
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Prints the report, and writes no file
    #[arg(long)]
    no_files: bool,

    /// Writes what a README shows of a run of one scenario into this folder instead: a chart for light and one for dark
    /// pages, and overhead.md, which has both, a small table, and the command that measured it
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "no_files", "prices"])]
    brief: Option<PathBuf>,
}

/// The forms of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
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

pub(super) fn run(args: &Report) -> Result<bool> {
    let records = record::read(&args.directory)?;
    if let Some(folder) = &args.brief {
        return brief(&records, folder);
    }
    let summary = Summary::of(&records);
    let mut files = Vec::new();
    if !args.no_files {
        files = write(args, &records, &summary)?;
    }
    match args.output {
        Form::Csv => print(&report::csv(&records)?)?,
        Form::Markdown => print(&report::markdown(&summary))?,
        Form::Json => leno_console::print_json(&records)?,
        Form::Table => print(&(tables(&summary) + &files.join("\n") + "\n"))?,
    }
    Ok(true)
}

/// Writes the brief report, and prints the page of it.
fn brief(records: &[record::Record], folder: &Path) -> Result<bool> {
    let brief = Brief::of(records, &folder.display().to_string())?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let [light, dark] = Brief::CHARTS;
    for (name, text) in
        [(light, &brief.light), (dark, &brief.dark), ("overhead.md", &brief.markdown)]
    {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&brief.markdown).map(|()| true)
}

/// The tables of a report.
pub(crate) fn tables(summary: &Summary) -> String {
    let mut text = format!("{}\n", summary.machine);
    for caveat in &summary.caveats {
        text += &format!("! {caveat}\n");
    }
    for (title, cells) in summary.scenarios() {
        text += &format!("\n{title}\n{}", aligned(&report::rows(&cells)));
        text += &format!("\n{}", aligned(&report::rows_of_other_figures(&cells)));
    }
    if !summary.generators.is_empty() {
        text += "\ngenerators side by side\n";
        text += &aligned(&report::rows_of_generators(&summary.generators));
    }
    for (scenario, mesh, why) in &summary.left_out {
        text += &format!("\nnot measured: {scenario}, {mesh}: {why}");
    }
    text + "\n"
}

/// Writes every form beside the records; returns lines that name the files.
fn write(args: &Report, records: &[record::Record], summary: &Summary) -> Result<Vec<String>> {
    let figures = report::figures(summary, records, &cost::prices(args.prices.as_deref())?);
    let charts = args.directory.join("charts");
    fs::create_dir_all(&charts).with_context(|| format!("cannot make {}", charts.display()))?;
    let png = picture::draws_png();
    for figure in &figures {
        picture::write(&figure.svg, &charts.join(format!("{}.svg", figure.name)))?;
        if png {
            picture::write(&figure.svg, &charts.join(format!("{}.png", figure.name)))?;
        }
    }
    let page = args.directory.join("report.html");
    for (path, text) in [
        (page.clone(), report::page(summary, &figures)),
        (args.directory.join("report.md"), report::markdown(summary)),
        (args.directory.join("report.csv"), report::csv(records)?),
    ] {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut lines = vec![format!("page:   {}", page.display())];
    let forms = if png { "SVG and PNG" } else { "SVG; for PNG: apt-get install -y librsvg2-bin" };
    lines.push(format!("charts: {} ({forms})", charts.display()));
    Ok(lines)
}

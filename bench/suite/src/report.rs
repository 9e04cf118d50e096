//! Reports, made from records alone: tables, CSV, Markdown, and one page of HTML with charts.

mod brief;
mod cell;
mod charts;
mod forms;
mod generators;
mod summary;
mod tables;

pub use brief::Brief;
pub use charts::{CaptionedChart, charts};
pub use forms::Form;
pub use summary::Summary;
pub use tables::csv;

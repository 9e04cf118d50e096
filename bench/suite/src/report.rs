//! Reports, made from records alone: a table, CSV, Markdown, and one page of HTML with charts.

mod brief;
mod charts;
mod generators;
mod html;
mod other_figures;
mod summary;
mod text;

pub use brief::Brief;
pub use charts::{Figure, figures};
pub use generators::Agreement;
pub use html::page;
pub use summary::{Cell, Summary};
pub use text::{csv, markdown, rows, rows_of_generators, rows_of_other_figures};

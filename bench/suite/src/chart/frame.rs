//! The frame of a chart, and the shapes in it.

/// Width of every chart in pixels; browsers scale it.
pub(super) const WIDTH: f64 = 760.0;
/// Height of charts with axes on both sides.
pub(super) const HEIGHT: f64 = 400.0;
/// Left margin: labels and title of the y axis.
pub(super) const LEFT: f64 = 78.0;
/// Right margin: half of the last label.
pub(super) const RIGHT: f64 = 34.0;
pub(super) const TOP: f64 = 56.0;
pub(super) const BOTTOM: f64 = 58.0;

/// Replacements for the colours of the frame if the reader's browser prefers a dark scheme. Curves
/// and bars keep their colours, which have enough contrast on both backgrounds.
pub(super) const DARK: &str = "<style>@media (prefers-color-scheme: dark) {\
    svg[fill='#333'] { fill: #d3dae1 } svg rect[fill='#fff'] { fill: #14181d } \
    svg text[fill='#111'] { fill: #f2f5f7 } svg line[stroke='#e6e6e6'] { stroke: #2c343c } \
    svg line[stroke='#777'] { stroke: #8d97a1 } svg line[stroke='#222'] { stroke: #f2f5f7 } \
    }</style>\n";

/// Escapes text for use in markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The frame of a chart: size, background, title.
pub(super) fn open(title: &str, (width, height): (f64, f64)) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" \
         font-size=\"12\" fill=\"#333\">\n{DARK}\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT:.0}\" y=\"22\" font-size=\"15\" font-weight=\"600\" fill=\"#111\">{title}</text>\n"
    )
}

/// A text at a position; `anchor` is `start`, `middle` or `end`.
pub(super) fn text((x, y): (f64, f64), anchor: &str, words: &str) -> String {
    let words = escape(words);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n")
}

/// A thin line between two positions.
pub(super) fn rule((x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) -> String {
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>\n"
    )
}

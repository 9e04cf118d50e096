//! Charts as SVG: lines and dots over a numeric axis, and bars with their intervals.
//!
//! The SVG is written by hand. Three kinds of chart take less code than the configuration of a
//! plotting library, need no fonts at build time, and stay text that a browser can search and
//! scale.

mod axis;
mod bars;
mod lines;

pub use axis::{Axis, Scale, short};
pub use bars::{Bar, Bars};
pub use lines::{Chart, Series};

/// Width of every chart in pixels; browsers scale it.
const WIDTH: f64 = 760.0;
/// Height of charts with axes on both sides.
const HEIGHT: f64 = 400.0;
/// Left margin: labels and title of the y axis.
const LEFT: f64 = 78.0;
/// Right margin: half of the last label.
const RIGHT: f64 = 34.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 58.0;

/// Colours that stay distinguishable for colour-blind readers and in print (Okabe and Ito 2008).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5f5f5f", "#8c6d00"];

/// The colour of the baseline without a mesh.
const BASELINE: &str = "#8a8a8a";

/// The colour of a name, the same in every chart; `nth` is its position among the names of a
/// report.
#[must_use]
pub fn colour(name: &str, nth: usize) -> &'static str {
    if name == "none" { BASELINE } else { COLOURS[nth % COLOURS.len()] }
}

/// Escapes text for use in markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Replacements for the colours of the frame if the reader's browser prefers a dark scheme. Curves
/// and bars keep their colours, which have enough contrast on both backgrounds.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {\
    svg[fill='#333'] { fill: #d3dae1 } svg rect[fill='#fff'] { fill: #14181d } \
    svg text[fill='#111'] { fill: #f2f5f7 } svg line[stroke='#e6e6e6'] { stroke: #2c343c } \
    svg line[stroke='#777'] { stroke: #8d97a1 } svg line[stroke='#222'] { stroke: #f2f5f7 } \
    }</style>\n";

/// The frame of a chart: size, background, title.
fn open(title: &str, (width, height): (f64, f64)) -> String {
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
fn text((x, y): (f64, f64), anchor: &str, words: &str) -> String {
    let words = escape(words);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n")
}

/// A thin line between two positions.
fn rule((x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) -> String {
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale) -> Chart {
        Chart {
            title: "a < b".into(),
            x: Axis::new("x", scale),
            y: Axis::new("y", Scale::Linear),
            series: vec![Series {
                name: "one & two".into(),
                colour: colour("one", 0),
                points: vec![(0.5, 1.0), (0.99, 5.0)],
                curve: vec![(0.5, 1.0), (0.99, 5.0)],
            }],
        }
    }

    #[test]
    fn a_chart_is_well_formed_and_holds_its_words_escaped() {
        for scale in [Scale::Linear, Scale::LogNines] {
            let svg = chart(scale).svg();
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
            assert!(svg.contains("a &lt; b") && svg.contains("one &amp; two"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert_eq!(svg.matches("<circle").count(), 2);
        }
    }

    #[test]
    fn a_legend_stays_inside_of_the_chart() {
        let mut many = chart(Scale::Linear);
        let one = many.series[0].clone();
        many.series =
            (0..9).map(|_| Series { name: "haproxy (invalid)".into(), ..one.clone() }).collect();
        let svg = many.svg();
        let places = svg.match_indices("width=\"14\"").map(|(at, _)| {
            let before = &svg[..at];
            let x = before.rsplit("x=\"").next().and_then(|rest| rest.split('"').next());
            x.and_then(|x| x.parse::<f64>().ok()).unwrap()
        });
        assert!(places.max_by(f64::total_cmp).unwrap() < WIDTH - 100.0, "{svg}");
    }

    #[test]
    fn a_long_legend_moves_the_plot_down() {
        let mut many = chart(Scale::Linear);
        let one = many.series[0].clone();
        let named = |count: usize| {
            (0..count).map(|_| Series { name: "haproxy (invalid)".into(), ..one.clone() }).collect()
        };
        let number = |svg: &str, before: &str| {
            let (_, rest) = svg.split_once(before)?;
            rest.split(['"', ')']).next()?.parse::<f64>().ok()
        };
        many.series = named(8);
        let svg = many.svg();
        assert_eq!((number(&svg, "height=\""), number(&svg, "translate(0 ")), (Some(HEIGHT), None));
        many.series = named(24);
        let svg = many.svg();
        let lower = number(&svg, "translate(0 ").unwrap();
        assert_eq!(number(&svg, "height=\""), Some(HEIGHT + lower));
        let lowest = svg.match_indices("width=\"14\"").map(|(at, _)| {
            let (_, y) = svg[..at].rsplit_once("y=\"").unwrap();
            y.split('"').next().unwrap().parse::<f64>().unwrap()
        });
        let lowest = lowest.max_by(f64::total_cmp).unwrap();
        assert!(lowest + 6.0 < TOP + lower, "{lowest} {lower}");
    }

    #[test]
    fn every_colour_of_the_frame_has_one_for_the_dark() {
        for colour in ["#333", "#fff", "#111", "#e6e6e6", "#777", "#222"] {
            assert!(DARK.contains(&format!("='{colour}'")), "{colour}");
        }
    }

    #[test]
    fn nines_are_evenly_apart() {
        let svg = chart(Scale::LogNines).svg();
        for label in ["50 %", "90 %", "99 %"] {
            assert!(svg.contains(label), "{label}");
        }
        let place = |q| Scale::LogNines.place(q);
        let step = place(0.99) - place(0.9);
        assert!((place(0.999) - place(0.99) - step).abs() < 1e-9);
    }

    #[test]
    fn a_chart_of_nothing_is_still_one() {
        let mut empty = chart(Scale::Linear);
        empty.series.clear();
        assert!(!empty.svg().contains("NaN"));
        let bars = Bars { title: "t".into(), unit: "ms".into(), bars: Vec::new() };
        assert!(!bars.svg().contains("NaN"));
    }

    #[test]
    fn bars_show_value_and_interval() {
        let bar = Bar {
            group: "http-1k".into(),
            name: "leno".into(),
            colour: colour("leno", 0),
            value: 2.0,
            interval: Some((1.5, 2.5)),
        };
        let svg = Bars { title: "t".into(), unit: "ms".into(), bars: vec![bar] }.svg();
        assert!(svg.contains(">2.00 ms<") && svg.contains("http-1k"), "{svg}");
    }
}

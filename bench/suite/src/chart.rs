//! Charts as SVG: lines and dots over a numeric axis, and bars with their intervals.
//!
//! The SVG is written by hand. Three kinds of chart take less code than the configuration of a
//! plotting library, need no fonts at build time, and stay text that a browser can search and
//! scale.

mod axis;
mod bars;
mod frame;
mod lines;

pub use axis::{Axis, Scale, short};
pub use bars::{Bar, Bars};
pub use frame::escape;
pub use lines::{Chart, Series};

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

#[cfg(test)]
mod tests {
    use super::frame::{DARK, HEIGHT, TOP, WIDTH};
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

//! The screen of `leno top` and how it reacts to keys. The code here does not need a terminal.

use leno_observe::stat::StatReport;

use crate::commands::order::{RowOrder, Sort};
use crate::commands::{escaped, table};

/// The escape sequences for inverse video, for red, and for normal text.
const INVERSE: &str = "\x1b[7m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";
/// The smallest success rate that is not printed in red.
const GOOD: f64 = 0.99;
/// The number of lines besides the rows: the first line, the heading, and the keys.
const FRAME: usize = 3;

const ESCAPE: u8 = 0x1b;
const CTRL_C: u8 = 3;
const BACKSPACE: [u8; 2] = [8, 0x7f];

/// The rows that the screen shows: workloads or edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Edges,
    Workloads,
}

/// The effect of a key: whether the program continues or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    GoesOn,
    End,
}

/// How much of an arrow key's byte sequence has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sequence {
    #[default]
    None,
    Escape,
    Bracket,
}

/// The screen.
pub(super) struct Screen {
    pub(super) report: Option<StatReport>,
    rows: RowKind,
    order: RowOrder,
    /// The number of rows above the first visible row.
    above: usize,
    /// Whether the user is typing a filter.
    typing: bool,
    sequence: Sequence,
}

impl RowKind {
    pub(super) fn table(self, report: &StatReport) -> String {
        match self {
            Self::Edges => table::edges(report),
            Self::Workloads => table::workloads(report, false),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Edges => "edges",
            Self::Workloads => "workloads",
        }
    }

    /// The success rate of each row.
    fn success(self, report: &StatReport) -> Vec<Option<f64>> {
        match self {
            Self::Edges => report.edges.iter().map(|one| one.signals.success_rate).collect(),
            Self::Workloads => {
                report.workloads.iter().map(|one| one.signals.success_rate).collect()
            }
        }
    }
}

impl Screen {
    pub(super) fn new(rows: RowKind, order: RowOrder) -> Self {
        let (above, sequence) = (0, Sequence::None);
        Self { report: None, rows, order, above, typing: false, sequence }
    }

    /// Handles a byte that was typed.
    pub(super) fn typed(&mut self, byte: u8) -> Key {
        if byte == CTRL_C {
            return Key::End;
        }
        self.sequence = match (self.sequence, byte) {
            (Sequence::None, ESCAPE) => Sequence::Escape,
            (Sequence::Escape, b'[') => Sequence::Bracket,
            (Sequence::Bracket, arrow) => {
                self.scroll(arrow);
                Sequence::None
            }
            // The escape key alone ends the filter. The byte after it is a separate key.
            (Sequence::Escape | Sequence::None, byte) => {
                if self.sequence == Sequence::Escape {
                    self.order.filter = None;
                    self.typing = false;
                }
                self.sequence = Sequence::None;
                return if self.typing { self.type_filter(byte) } else { self.key(byte) };
            }
        };
        Key::GoesOn
    }

    fn scroll(&mut self, arrow: u8) {
        match arrow {
            b'A' => self.above = self.above.saturating_sub(1),
            b'B' => self.above += 1,
            _ => {}
        }
    }

    fn type_filter(&mut self, byte: u8) -> Key {
        let filter = self.order.filter.get_or_insert_default();
        match byte {
            b'\r' | b'\n' => self.typing = false,
            byte if BACKSPACE.contains(&byte) => drop(filter.pop()),
            byte if byte.is_ascii_graphic() => filter.push(byte.into()),
            _ => {}
        }
        Key::GoesOn
    }

    fn key(&mut self, byte: u8) -> Key {
        let all = Sort::ALL;
        let at = all.iter().position(|sort| *sort == self.order.sort).unwrap_or_default();
        match byte {
            b'q' => return Key::End,
            b's' => self.order.sort = all[(at + 1) % all.len()],
            b'S' => self.order.sort = all[(at + all.len() - 1) % all.len()],
            b'w' => {
                self.rows =
                    if self.rows == RowKind::Edges { RowKind::Workloads } else { RowKind::Edges };
                self.above = 0;
            }
            b'/' => {
                self.typing = true;
                self.order.filter = Some(String::new());
            }
            b'k' => self.scroll(b'A'),
            b'j' => self.scroll(b'B'),
            _ => {}
        }
        Key::GoesOn
    }

    /// The lines to draw on a terminal of this size.
    pub(super) fn lines(&self, (columns, height): (usize, usize)) -> Vec<String> {
        let fit = |line: &str| line.chars().take(columns).collect::<String>();
        let order = &self.order;
        let Some(report) = &self.report else {
            return vec![fit("leno top: counting the first window ...")];
        };
        let all = self.rows.success(report).len();
        let report = order.of(report.clone());
        let success = self.rows.success(&report);
        let room = height.saturating_sub(FRAME);
        let above = self.above.min(success.len().saturating_sub(room));
        let mut first = format!(
            "mesh {}: {} of {all} {} by {}, {:.1} s",
            report.mesh,
            success.len(),
            self.rows.name(),
            order.sort.name(),
            report.window_s
        );
        if let Some(filter) = &order.filter {
            first += &format!(", with {filter}{}", if self.typing { "_" } else { "" });
        }
        if !report.silent.is_empty() {
            first += &format!(", {} proxies do not answer", report.silent.len());
        }
        let mut lines = vec![fit(&escaped(&first))];
        let table = self.rows.table(&report);
        let text = escaped(&table);
        let mut rows = text.lines();
        let heading = rows.next().unwrap_or_default();
        lines.push(format!("{INVERSE}{:<columns$}{PLAIN}", fit(heading)));
        for (row, success) in rows.zip(success).skip(above).take(room) {
            let row = fit(row);
            let is_bad = success.is_some_and(|rate| rate < GOOD);
            lines.push(if is_bad { format!("{RED}{row}{PLAIN}") } else { row });
        }
        lines.resize(height.saturating_sub(1).max(lines.len()), String::new());
        lines.push(fit(
            "q quit  s S sort  w workloads or edges  / filter  Escape no filter  j k scroll",
        ));
        lines
    }
}

#[cfg(test)]
mod tests {
    use leno_observe::stat::{GoldenSignals, WorkloadReport};

    use super::*;

    fn screen() -> Screen {
        let workload = |(name, rate, success): (&str, f64, f64)| WorkloadReport {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            instances: 1,
            ready: 1,
            meshed: true,
            proxies: Vec::new(),
            signals: GoldenSignals {
                success_rate: Some(success),
                requests_per_s: rate,
                ..GoldenSignals::default()
            },
        };
        let workloads =
            [("cart", 1.0, 1.0), ("db", 9.0, 0.5), ("web", 3.0, 1.0)].map(workload).into();
        let report = StatReport {
            mesh: "default".to_owned(),
            window_s: 2.0,
            workloads,
            edges: Vec::new(),
            routes: Vec::new(),
            ejected: Vec::new(),
            silent: Vec::new(),
        };
        let mut screen = Screen::new(RowKind::Workloads, RowOrder::default());
        screen.report = Some(report);
        screen
    }

    fn names(screen: &Screen, size: (usize, usize)) -> Vec<String> {
        let lines = screen.lines(size);
        let rows = lines[2..lines.len() - 1].iter().filter(|line| !line.is_empty());
        rows.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn keys_sort_filter_and_scroll() {
        let mut screen = screen();
        let size = (80, 24);
        assert_eq!(names(&screen, size), ["cart", "db", "web"]);
        assert_eq!(screen.lines(size)[0], "mesh default: 3 of 3 workloads by name, 2.0 s");
        screen.typed(b's');
        screen.typed(b's');
        assert_eq!(names(&screen, size), ["db", "web", "cart"], "by rate");
        screen.typed(b'S');
        assert_eq!(names(&screen, size), ["db", "cart", "web"], "by success");
        for byte in *b"/shop/cx" {
            screen.typed(byte);
        }
        screen.typed(BACKSPACE[1]);
        assert!(screen.lines(size)[0].ends_with(", with shop/c_"), "{:?}", screen.lines(size));
        assert_eq!(names(&screen, size), ["cart"]);
        screen.typed(b'\r');
        assert_eq!(screen.typed(b'q'), Key::End);
        screen.typed(ESCAPE);
        screen.typed(b'j');
        assert_eq!(names(&screen, (80, 5)), ["cart", "web"], "one is above");
        for byte in [ESCAPE, b'[', b'A'] {
            screen.typed(byte);
        }
        assert_eq!(names(&screen, (80, 5)), ["db", "cart"]);
        assert_eq!(screen.typed(CTRL_C), Key::End);
    }

    #[test]
    fn lines_fit_the_terminal_and_what_fails_is_red() {
        let screen = screen();
        let lines = screen.lines((40, 10));
        assert_eq!(lines.len(), 10);
        let shown = |line: &String| {
            line.replace(INVERSE, "").replace(RED, "").replace(PLAIN, "").chars().count()
        };
        assert!(lines.iter().all(|line| shown(line) <= 40), "{lines:?}");
        let red: Vec<_> = lines.iter().filter(|line| line.starts_with(RED)).collect();
        assert!(red.len() == 1 && red[0].contains("db"), "{lines:?}");
        assert!(
            Screen::new(RowKind::Edges, RowOrder::default()).lines((20, 5))[0]
                .starts_with("leno top")
        );
    }
}

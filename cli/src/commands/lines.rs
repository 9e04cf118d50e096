//! Prints text in lines with labels.

/// Lines with their labels in a column. A label that is equal to the previous one is left out.
#[derive(Default)]
pub(crate) struct LabelledLines {
    pub(crate) text: String,
    last: String,
}

impl LabelledLines {
    /// Adds a text of one or several lines.
    pub(crate) fn add(&mut self, label: &str, text: &str) {
        let shown = if label == self.last { "" } else { label };
        for (index, line) in text.lines().enumerate() {
            let label = if index == 0 { shown } else { "" };
            self.text.push_str(format!("{label:<12} {line}").trim_end());
            self.text.push('\n');
        }
        if !label.is_empty() {
            label.clone_into(&mut self.last);
        }
    }
}

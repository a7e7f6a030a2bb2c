//! Plain-text tables (Ceph: `TextTable`, `src/common/TextTable.cc`): every column as wide as its
//! widest cell, two spaces between columns.

/// Which side cells stick to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Padded on the right.
    Left,
    /// Padded on the left.
    Right,
}

/// A table that is being filled.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without columns.
    pub fn new() -> Table {
        Table::default()
    }

    /// Adds a column: its heading, and how the heading and the cells are aligned.
    pub fn column(&mut self, heading: &str, head: Align, cells: Align) -> &mut Self {
        self.columns.push((heading.into(), head, cells));
        self
    }

    /// Adds columns with left-aligned headings and right-aligned cells.
    pub fn right(&mut self, headings: &[&str]) -> &mut Self {
        for h in headings {
            self.column(h, Align::Left, Align::Right);
        }
        self
    }

    /// Adds a row. Missing cells stay absent, as in Ceph's unfinished rows.
    pub fn row<I: IntoIterator<Item = S>, S: Into<String>>(&mut self, cells: I) -> &mut Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let len = |s: &str| s.chars().count();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, (h, ..))| {
                self.rows
                    .iter()
                    .filter_map(|r| r.get(i))
                    .map(|c| len(c))
                    .max()
                    .unwrap_or(0)
                    .max(len(h))
            })
            .collect();
        let pad = |f: &mut std::fmt::Formatter<'_>, i: usize, text: &str, align: Align| {
            if i > 0 {
                f.write_str("  ")?;
            }
            let width = widths[i];
            match align {
                Align::Left => write!(f, "{text:<width$}"),
                Align::Right => write!(f, "{text:>width$}"),
            }
        };
        for (i, (heading, head, _)) in self.columns.iter().enumerate() {
            pad(f, i, heading, *head)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            for (i, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                pad(f, i, cell, column.2)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns() {
        let mut t = Table::new();
        t.column("NAME", Align::Left, Align::Left).right(&["N"]);
        t.row(["a", "10"]).row(["longer", "7"]);
        assert_eq!(t.to_string(), "NAME    N \na       10\nlonger   7\n");
    }
}

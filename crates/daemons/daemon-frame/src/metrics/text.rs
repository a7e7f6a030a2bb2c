//! The text format of metrics (version 0.0.4).

use std::fmt::Write;

/// The kind of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only goes up, or begins anew.
    Counter,
    /// Quantiles, and a sum and a count in names of their own.
    Summary,
    /// It is not known.
    Untyped,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Summary => "summary",
            Kind::Untyped => "untyped",
        }
    }
}

/// Metrics, one after the other. All lines of a name follow its heading.
#[derive(Default)]
pub struct Text(String);

impl Text {
    /// Begins a metric.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// A value of the metric that was begun last.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = match value {
            v if v.is_nan() => writeln!(self.0, " NaN"),
            v if v.is_infinite() => writeln!(self.0, " {}Inf", if v > 0.0 { '+' } else { '-' }),
            v if v.fract() == 0.0 && v.abs() < 1e15 => writeln!(self.0, " {v:.1}"),
            v => writeln!(self.0, " {v}"),
        };
    }

    /// A metric with one value.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.metric(name, kind, help);
        self.value(name, &[], value);
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_numbers() {
        let mut t = Text::default();
        t.one("ceph_health_status", Kind::Gauge, "Health, as 0 to 2", 1.0);
        t.metric("x", Kind::Counter, "a\nb");
        t.value("x", &[("a", "say \"hi\"\n"), ("b", "c\\d")], 0.25);
        t.value("x", &[], f64::NAN);
        let lines: Vec<String> = t.finish().lines().map(str::to_owned).collect();
        assert_eq!(
            lines[..3],
            [
                "# HELP ceph_health_status Health, as 0 to 2",
                "# TYPE ceph_health_status gauge",
                "ceph_health_status 1.0"
            ]
        );
        assert_eq!(
            lines[3..],
            ["# HELP x a\\nb", "# TYPE x counter", r#"x{a="say \"hi\"\n",b="c\\d"} 0.25"#, "x NaN"]
        );
    }
}

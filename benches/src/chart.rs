//! The measured loads as a picture: a bar for each rate, with the median and the 99th percentile.

use crate::report::Line;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const ROW: usize = 34;
/// Where the bars begin and end.
const BARS: (f64, f64) = (270.0, 600.0);

/// An SVG document that needs no other file and is readable on a light and on a dark page.
pub fn bars(lines: &[Line], title: &str) -> String {
    let most = lines.iter().map(|line| line.per_second).fold(1.0, f64::max);
    let height = (lines.len() + 2) * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <style>text{{font:14px sans-serif;fill:#666}}rect{{fill:#4a7fb5}}.own{{fill:#d9782d}}</style>\n\
         <title>{title}</title>\n<text x=\"10\" y=\"22\">{title}</text>\n",
        title = escaped(title)
    );
    for (number, line) in lines.iter().enumerate() {
        let top = (number + 1) * ROW;
        let text = top + 20;
        let class = if line.name.starts_with("cairn") { " class=\"own\"" } else { "" };
        let width = (BARS.1 - BARS.0) * line.per_second / most;
        // Writing into a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{text}\">{}</text><rect{class} x=\"{}\" y=\"{}\" width=\"{width:.1}\" height=\"22\"/>\
             <text x=\"{:.1}\" y=\"{text}\">{:.0}/s; p50 {:.1} ms, p99 {:.1} ms</text>",
            escaped(&line.name),
            BARS.0,
            top + 4,
            BARS.0 + width + 8.0,
            line.per_second,
            line.p50_us / 1000.0,
            line.p99_us / 1000.0
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_has_the_longest_bar_and_a_name_is_text() {
        let line = |name: &str, per_second| Line {
            name: name.to_owned(),
            operations: 1,
            seconds: 1.0,
            per_second,
            mean_us: 1.0,
            p50_us: 1500.0,
            p99_us: 2500.0,
            p999_us: 1.0,
            little: 1.0,
            clients: 1,
        };
        let svg = bars(&[line("cairn", 400.0), line("a<b & \"c\"", 100.0)], "puts");
        assert!(svg.contains("width=\"330.0\"") && svg.contains("width=\"82.5\""), "{svg}");
        assert!(svg.contains(">a&lt;b &amp; &quot;c&quot;<") && !svg.contains("a<b"), "{svg}");
        assert!(svg.contains("400/s; p50 1.5 ms, p99 2.5 ms"), "{svg}");
    }
}

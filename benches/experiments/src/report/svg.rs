//! Plots as SVG documents, readable on light and on dark pages.
//!
//! The drawing crate writes fixed colours. Text and lines are drawn in two colours that stand for
//! `ink` and `grid`; afterwards they become classes, and a style sheet in the document gives each
//! class a colour for light pages and one for dark pages. The lines' own colours have enough
//! contrast on both.

use super::numbers::short;
use super::{Figure, Plot, PlotData};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 860;
const INK: RGBColor = RGBColor(1, 2, 3);
const GRID: RGBColor = RGBColor(4, 5, 6);
/// Distinguishable with any colour vision, on white and on black (after Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(148, 129, 43),
    RGBColor(86, 140, 233),
    RGBColor(128, 128, 128),
];
const STYLE: &str = "<style>\
.ink{fill:#1f2328}.line{stroke:#57606a}.grid{stroke:#d0d7de}\
@media (prefers-color-scheme:dark){.ink{fill:#e6edf3}.line{stroke:#9198a1}.grid{stroke:#3d444d}}\
</style>\n";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The plot as an SVG document.
///
/// # Errors
/// If it has nothing to draw, or a line has a point that a logarithmic axis cannot show.
pub fn svg(plot: &Plot) -> Result<String> {
    if !plot.data.is_drawable() {
        return Err(anyhow!("a plot without a figure, or with one that its axes cannot show"));
    }
    let mut document = String::new();
    let height = match &plot.data {
        PlotData::Bars { bars, .. } => 96 + 34 * u32::try_from(bars.len())?,
        PlotData::Lines { .. } => 460,
    };
    {
        let area = SVGBackend::with_string(&mut document, (WIDTH, height)).into_drawing_area();
        let title = ("sans-serif", 19).into_font().color(&INK);
        let area = drawn(area.titled(&plot.title, title))?;
        match &plot.data {
            PlotData::Bars { axis, bars } => draw_bars(&area, axis, bars)?,
            PlotData::Lines { x, y, ticks, lines } => draw_lines(&area, (x, y), ticks, lines)?,
        }
        drawn(area.present())?;
    }
    Ok(with_classes(&document))
}

/// The drawing crate's errors borrow what is drawn.
fn drawn<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow!("a plot cannot be drawn: {error}"))
}

fn with_classes(document: &str) -> String {
    let document = document
        .replace(r##"fill="#010203""##, r#"class="ink""#)
        .replace(r##"stroke="#010203""##, r#"class="line""#)
        .replace(r##"stroke="#040506""##, r#"class="grid""#);
    match document.find("<svg").and_then(|at| Some((at, document.get(at..)?.find('>')?))) {
        Some((at, end)) => {
            let (head, tail) = document.split_at(at + end + 1);
            format!("{head}\n{STYLE}{}\n", tail.trim())
        }
        None => document,
    }
}

fn label(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn draw_bars(area: &Area<'_>, axis: &str, bars: &[(String, Figure)]) -> Result<()> {
    let most = bars.iter().map(|(_, figure)| figure.most).fold(0.0, f64::max);
    let count = i32::try_from(bars.len())?;
    let mut chart = drawn(
        ChartBuilder::on(area)
            .x_label_area_size(46)
            .y_label_area_size(12)
            .margin_right(24)
            .build_cartesian_2d(0.0..most * 1.18, 0..count * 10),
    )?;
    drawn(
        chart
            .configure_mesh()
            .disable_y_axis()
            .disable_y_mesh()
            .x_labels(6)
            .x_label_formatter(&|value| short(*value))
            .label_style(label(13))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .x_desc(axis)
            .draw(),
    )?;
    let mut top = count * 10;
    for (at, (name, figure)) in bars.iter().enumerate() {
        let colour = COLOURS.get(at % COLOURS.len()).copied().unwrap_or(GRID);
        let bar = [(0.0, top - 8), (figure.median, top - 5)];
        drawn(chart.draw_series([Rectangle::new(bar, colour.filled())]))?;
        let spread = [(figure.least, top - 6), (figure.most, top - 6)];
        drawn(chart.draw_series([PathElement::new(spread.to_vec(), INK.stroke_width(2))]))?;
        let text = format!("{name}: {}", short(figure.median));
        drawn(chart.draw_series([Text::new(text, (most * 0.003, top - 1), label(14))]))?;
        top -= 10;
    }
    Ok(())
}

fn draw_lines(
    area: &Area<'_>,
    (x, y): (&str, &str),
    ticks: &[(f64, String)],
    lines: &[(String, Vec<(f64, f64)>)],
) -> Result<()> {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let range = |of: fn((f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        (least, points().map(of).fold(0.0, f64::max))
    };
    let ((left, right), (low, high)) = (range(|point| point.0), range(|point| point.1));
    let places = ticks.iter().map(|(place, _)| *place).collect();
    let (bottom, top) = (low * 0.7, high * headroom(high / (low * 0.7), lines.len()));
    let mut chart = drawn(
        ChartBuilder::on(area)
            .x_label_area_size(48)
            .y_label_area_size(70)
            .margin_right(24)
            .margin_top(8)
            .build_cartesian_2d(
                ((left * 0.85)..(right * 1.2)).log_scale().with_key_points(places),
                (bottom..top).log_scale().with_key_points(decades(bottom, top)),
            ),
    )?;
    let named = |value: &f64| {
        let near = |(place, _): &&(f64, String)| (place / value - 1.0).abs() < 1e-6;
        ticks.iter().find(near).map_or_else(String::new, |(_, name)| name.clone())
    };
    drawn(
        chart
            .configure_mesh()
            .x_label_formatter(&named)
            .y_label_formatter(&|value| short(*value))
            .label_style(label(13))
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .x_desc(x)
            .y_desc(y)
            .draw(),
    )?;
    for (at, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS.get(at % COLOURS.len()).copied().unwrap_or(GRID);
        let dots = points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
        drawn(chart.draw_series(dots))?;
        let line = PathElement::new(points.clone(), colour.stroke_width(3));
        let series = drawn(chart.draw_series([line]))?;
        series.label(name).legend(move |(x, y)| {
            PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3))
        });
    }
    drawn(
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(label(13))
            .draw(),
    )
}

/// How far a logarithmic axis goes on above the highest point, so that the legend covers no line.
/// `range` is the highest point over the lowest place on the axis.
fn headroom(range: f64, lines: usize) -> f64 {
    let legend = (0.06 + 0.05 * lines as f64).min(0.6);
    range.max(2.0).powf(legend / (1.0 - legend)).max(1.3)
}

/// 1, 2 and 5 times each power of ten between two values; only the powers if there are many.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all =
        (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|value| (low..=high).contains(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[f64]) -> Plot {
        let figure = |value: &f64| Figure {
            median: *value,
            least: value * 0.9,
            most: value * 1.1,
            rounds: 3,
        };
        let bars = values.iter().map(|value| (format!("a <row> of {value}"), figure(value)));
        let data = PlotData::Bars { axis: "puts/s".into(), bars: bars.collect() };
        Plot { file: "b.svg".into(), title: "Puts & more".into(), sentence: String::new(), data }
    }

    fn lines(points: &[(f64, f64)]) -> Plot {
        let data = PlotData::Lines {
            x: "clients".into(),
            y: "puts/s".into(),
            ticks: vec![(1.0, "one".into()), (100.0, "hundred".into())],
            lines: vec![("sync".into(), points.to_vec())],
        };
        Plot { file: "l.svg".into(), title: "Lines".into(), sentence: String::new(), data }
    }

    #[test]
    fn text_and_lines_have_a_colour_for_light_and_for_dark_pages() {
        for plot in [bars(&[10.0, 2500.0]), lines(&[(1.0, 900.0), (100.0, 26_000.0)])] {
            let document = svg(&plot).unwrap();
            assert!(document.contains("prefers-color-scheme:dark"), "{document}");
            assert!(document.contains(r#"class="ink""#) && document.contains(r#"class="grid""#));
            for fixed in ["#010203", "#040506", "#000000"] {
                assert!(!document.contains(fixed), "{fixed} in {document}");
            }
        }
    }

    #[test]
    fn labels_titles_and_units_are_in_the_document_and_escaped() {
        let document = svg(&bars(&[10.0, 2500.0])).unwrap();
        for text in ["Puts &amp; more", "puts/s", "a &lt;row&gt; of 2500: 2,500"] {
            assert!(document.contains(text), "{text} in {document}");
        }
        let document = svg(&lines(&[(1.0, 900.0), (100.0, 26_000.0)])).unwrap();
        for text in ["clients", "puts/s", "one", "hundred", "sync", "10,000"] {
            assert!(document.contains(text), "{text} in {document}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        for (plot, drawable) in [
            (bars(&[]), false),
            (bars(&[0.0]), false),
            (bars(&[1.0, f64::INFINITY]), false),
            (bars(&[0.0, 1.0]), true),
            (lines(&[]), false),
            (lines(&[(0.0, 1.0)]), false),
            (lines(&[(2.0, 1.0), (1.0, f64::NAN)]), false),
            // One point is a plot.
            (lines(&[(1.0, 5.0)]), true),
        ] {
            assert_eq!(plot.data.is_drawable(), drawable, "{plot:?}");
            assert_eq!(svg(&plot).is_ok(), drawable, "{plot:?}");
        }
    }
}

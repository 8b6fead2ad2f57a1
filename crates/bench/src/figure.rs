//! Figures as SVG: panels of lines with one caption.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::error::BenchError;

/// A title and panels side by side.
pub struct Figure {
    pub title: String,
    pub panels: Vec<Panel>,
}

/// Lines on common axes that start at zero.
pub struct Panel {
    pub title: String,
    pub x: String,
    pub y: String,
    pub lines: Vec<Line>,
    /// A part of the x axis to highlight, and its label.
    pub shade: Option<(Range<f64>, String)>,
}

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub style: Style,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A line through marked points, for few points.
    Marked,
    /// A line alone.
    Plain,
    /// Points alone.
    Dots,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

const PANEL: (u32, u32) = (560, 400);
const TITLE_HEIGHT: u32 = 48;
const CAPTION_HEIGHT: u32 = 32;
/// Length of a colour sample in the legend.
const KEY: i32 = 16;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const FAINT: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
/// Okabe and Ito's palette, distinguishable with colour blindness.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
/// The highlighted part of the x axis.
const SHADE: RGBColor = RGBColor(0xfd, 0xf0, 0xd5);

fn write_error(path: &Path, reason: &dyn std::fmt::Display) -> BenchError {
    BenchError::Figure {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

impl Figure {
    /// Fails if a figure could not be written to `path`. Leaves the path unchanged.
    pub fn check_writable(path: &Path) -> Result<(), BenchError> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let checked = match created {
            Ok(_) => std::fs::remove_file(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().append(true).open(path).map(drop)
            }
            Err(error) => Err(error),
        };
        checked.map_err(|error| write_error(path, &error))
    }

    /// The figure as text for the file at `path`, which errors name.
    pub fn svg(&self, caption: &str, path: &Path) -> Result<String, BenchError> {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg, caption);
        drawn.map_err(|error| write_error(path, &error))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String, caption: &str) -> Drawn {
        let width = PANEL.0 * self.panels.len().max(1) as u32;
        let height = TITLE_HEIGHT + PANEL.1 + CAPTION_HEIGHT;
        let root = SVGBackend::with_string(svg, (width, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(TITLE_HEIGHT);
        let (middle, bottom) = rest.split_vertically(PANEL.1);
        centred(&top, &self.title, 22)?;
        centred(&bottom, caption, 13)?;
        let areas = middle.split_evenly((1, self.panels.len()));
        for (panel, area) in self.panels.iter().zip(areas) {
            panel.draw(&area)?;
        }
        root.present()?;
        Ok(())
    }
}

fn centred(area: &Area<'_>, text: &str, size: u32) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let style = font(size).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw_text(text, &style, (width as i32 / 2, height as i32 / 2))?;
    Ok(())
}

fn font(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// `0.25`, `3500`: at most three decimals, without trailing zeros.
fn tick(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (x_end, y_end) = self.ends();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, font(16))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x_end, 0.0..y_end)?;
        if let Some((span, name)) = &self.shade {
            let corners = [(span.start, 0.0), (span.end, y_end)];
            let drawn = chart.draw_series([Rectangle::new(corners, SHADE.filled())])?;
            drawn
                .label(name)
                .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + KEY, y + 5)], SHADE.filled()));
        }
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(font(12))
            .axis_desc_style(font(13))
            .x_label_formatter(&tick)
            .y_label_formatter(&tick)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            line.draw(&mut chart, *colour)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(FAINT)
            .label_font(font(12))
            .draw()?;
        Ok(())
    }

    /// A little beyond the largest values; 1 if there are none.
    fn ends(&self) -> (f64, f64) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let largest = |values: &mut dyn Iterator<Item = f64>| {
            let largest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
            if largest > 0.0 { largest } else { 1.0 }
        };
        let x = largest(&mut points().map(|point| point.0));
        let y = largest(&mut points().map(|point| point.1));
        (x * 1.03, y * 1.2)
    }
}

impl Line {
    fn draw(&self, chart: &mut Chart<'_, '_>, colour: RGBColor) -> Drawn {
        let measured = |point: &(f64, f64)| point.1.is_finite();
        let points = || self.points.iter().copied().filter(measured);
        let stroke = ShapeStyle::from(colour).stroke_width(2);
        let dots = |size| points().map(move |point| Circle::new(point, size, colour.filled()));
        let drawn = match self.style {
            Style::Marked => {
                chart.draw_series(dots(3))?;
                chart.draw_series(LineSeries::new(points(), stroke))?
            }
            Style::Plain => chart.draw_series(LineSeries::new(points(), stroke.stroke_width(1)))?,
            Style::Dots => chart.draw_series(dots(2))?,
        };
        drawn
            .label(&self.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + KEY, y)], stroke));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<(f64, f64)>) -> Panel {
        Panel {
            title: "a < b".to_owned(),
            x: "clients".to_owned(),
            y: "tokens/s".to_owned(),
            lines: vec![Line {
                name: "generated".to_owned(),
                points,
                style: Style::Marked,
            }],
            shade: Some((1.0..2.0, "prefill".to_owned())),
        }
    }

    #[test]
    fn every_label_and_point_is_drawn() {
        let figure = Figure {
            title: "Under load".to_owned(),
            panels: vec![
                panel(vec![(1.0, 2.0), (4.0, f64::NAN), (8.0, 3.0)]),
                panel(vec![]),
            ],
        };
        let svg = figure.svg("model on device", Path::new("a.svg")).unwrap();
        for word in [
            "Under load",
            "model on device",
            "a &lt; b",
            "clients",
            "tokens/s",
            "generated",
            "prefill",
        ] {
            assert!(svg.contains(word), "no {word:?} in:\n{svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 2, "NaN is left out");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn axes_end_beyond_largest_value() {
        let (x, y) = panel(vec![(32.0, 100.0), (8.0, f64::INFINITY)]).ends();
        assert!(x > 32.0 && x < 34.0 && y > 100.0 && y < 130.0);
        assert_eq!(panel(vec![]).ends(), (1.03, 1.2));
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        for (value, expected) in [
            (0.0, "0"),
            (3500.0, "3500"),
            (0.25, "0.25"),
            (0.1 + 0.2, "0.3"),
        ] {
            assert_eq!(tick(&value), expected);
        }
    }

    #[test]
    fn unwritable_path_is_named_and_files_survive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/figure.svg");
        let error = Figure::check_writable(&path).unwrap_err().to_string();
        assert!(error.contains("figure.svg"), "{error}");
        let path = directory.path().join("figure.svg");
        Figure::check_writable(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "an older one").unwrap();
        Figure::check_writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older one");
        assert!(Figure::check_writable(directory.path()).is_err());
    }
}

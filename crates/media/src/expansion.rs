//! What replaces a media marker in a prompt: text, special tokens and runs of placeholders.

use std::collections::BTreeMap;

use crate::error::MediaError;
use crate::number_words::number_words;
use crate::output::ViewRole;
use crate::rules::{
    FeatureCount, FrameText, ImageText, PromptFrame, PromptRules, TimeFormat, VideoText,
};
use crate::size::Size;

/// A part of an expanded prompt. Neighbouring texts belong together: tokenize them as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Ordinary text, or the part of the prompt between markers as it was given.
    Text(String),
    /// A token of the vocabulary by its text, such as `<|vision_start|>`.
    Token(String),
    /// Positions that take the features of an item, each written as this token.
    Features { token: String, count: usize },
}

/// What replaces an item's marker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expansion {
    pub pieces: Vec<Piece>,
}

impl Expansion {
    /// How many positions take features.
    pub fn positions(&self) -> usize {
        let counts = self.pieces.iter().map(|piece| match piece {
            Piece::Features { count, .. } => *count,
            Piece::Text(_) | Piece::Token(_) => 0,
        });
        counts.sum()
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Text(before)) => before.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_string())),
        }
    }

    fn token(&mut self, token: String) {
        self.pieces.push(Piece::Token(token));
    }

    fn features(&mut self, token: &str, more: usize) {
        if more == 0 {
            return;
        }
        if let Some(Piece::Features { token: last, count }) = self.pieces.last_mut()
            && last == token
        {
            *count += more;
            return;
        }
        self.pieces.push(Piece::Features {
            token: token.to_string(),
            count: more,
        });
    }
}

/// Text with names of tokens in braces, whose texts are known, and of values filled in later:
/// `{row}` and `{column}` inside tokens, `{time}`, `{index}`, `{count}`, `{duration}` in text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template(Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Token(String),
    Value(TemplateValue),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplateValue {
    Time,
    Index,
    Count,
    Duration,
}

/// What a template is filled with.
#[derive(Debug, Default)]
struct Values {
    row: u32,
    column: u32,
    time: String,
    index: usize,
    count: usize,
    duration: String,
}

impl Template {
    /// Names that are not in `tokens` are values.
    pub fn parse(text: &str, tokens: &BTreeMap<&str, String>) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                break;
            };
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.to_string()));
            }
            parts.extend(match (tokens.get(name), name) {
                (Some(token), _) => Some(TemplatePart::Token(token.clone())),
                (None, "time") => Some(TemplatePart::Value(TemplateValue::Time)),
                (None, "index") => Some(TemplatePart::Value(TemplateValue::Index)),
                (None, "count") => Some(TemplatePart::Value(TemplateValue::Count)),
                (None, "duration") => Some(TemplatePart::Value(TemplateValue::Duration)),
                (None, _) => None,
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.to_string()));
        }
        Self(parts)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn write(&self, values: &Values, expansion: &mut Expansion) {
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => expansion.text(text),
                TemplatePart::Token(token) => expansion.token(
                    token
                        .replace("{row}", &values.row.to_string())
                        .replace("{column}", &values.column.to_string()),
                ),
                TemplatePart::Value(TemplateValue::Time) => expansion.text(&values.time),
                TemplatePart::Value(TemplateValue::Index) => {
                    expansion.text(&values.index.to_string());
                }
                TemplatePart::Value(TemplateValue::Count) => {
                    expansion.text(&number_words(values.count));
                }
                TemplatePart::Value(TemplateValue::Duration) => expansion.text(&values.duration),
            }
        }
    }
}

/// A view as far as its features depend on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ViewSize {
    pub role: ViewRole,
    pub size: Size,
}

/// The views of an image, one of `images` in its prompt.
pub(crate) struct ImageViews<'a> {
    pub image: Size,
    pub images: usize,
    pub views: &'a [ViewSize],
    pub columns: u32,
    /// The best resolution for the image, if tiles are chosen from a list.
    pub resolution: Option<Size>,
}

impl PromptRules {
    pub(crate) fn expand_image(&self, views: &ImageViews<'_>) -> Expansion {
        let text = &self.image;
        let mut expansion = Expansion::default();
        let mut values = Values::default();
        text.start.write(&values, &mut expansion);
        if let FeatureCount::AnyResolution { .. } = self.features {
            let count = self.features.any_resolution(views);
            expansion.features(&text.placeholder, count);
            text.end.write(&values, &mut expansion);
            return expansion;
        }
        for view in views.views {
            match view.role {
                ViewRole::Tile { row, column } => {
                    (values.row, values.column) = (row + 1, column + 1);
                    text.tile.write(&values, &mut expansion);
                    self.write_features(text, view.size, &mut expansion);
                    if column + 1 < views.columns {
                        text.column_gap.write(&values, &mut expansion);
                    } else {
                        text.row_end.write(&values, &mut expansion);
                    }
                }
                ViewRole::Global => {
                    text.global.write(&values, &mut expansion);
                    self.write_features(text, view.size, &mut expansion);
                }
                ViewRole::Whole | ViewRole::Frame | ViewRole::Frames => {
                    text.single.write(&values, &mut expansion);
                    self.write_features(text, view.size, &mut expansion);
                }
            }
        }
        text.end.write(&values, &mut expansion);
        expansion
    }

    fn write_features(&self, text: &ImageText, size: Size, expansion: &mut Expansion) {
        if text.feature_row_gap.is_empty() {
            expansion.features(&text.placeholder, self.features.of_view(size));
            return;
        }
        let FeatureCount::Area { unit, .. } = self.features else {
            return;
        };
        let (rows, columns) = (size.height / unit, size.width / unit);
        for row in 0..rows {
            if row > 0 {
                text.feature_row_gap.write(&Values::default(), expansion);
            }
            expansion.features(&text.placeholder, columns as usize);
        }
    }

    /// A video of `groups` groups of frames that share patches, of this size after resizing, at
    /// these seconds.
    pub(crate) fn expand_video(
        &self,
        text: &VideoText,
        size: Size,
        groups: usize,
        seconds: &[f64],
        duration: f64,
    ) -> Expansion {
        let mut expansion = Expansion::default();
        let each = self.features.of_frame(size);
        let FrameText::Each {
            intro,
            before,
            after,
            separator,
            outro,
            time,
        } = &text.frames
        else {
            let extra = match self.features {
                // One newline feature ends the video.
                FeatureCount::AnyResolution { .. } => 1,
                _ => 0,
            };
            expansion.features(&text.placeholder, each * groups + extra);
            return expansion;
        };
        let total = duration as u64;
        let mut values = Values {
            count: groups,
            duration: format!("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60),
            ..Values::default()
        };
        intro.write(&values, &mut expansion);
        for group in 0..groups {
            if group > 0 {
                separator.write(&values, &mut expansion);
            }
            let seconds = seconds.get(group).copied().unwrap_or_default();
            values.index = group + 1;
            values.time = time.write(seconds);
            before.write(&values, &mut expansion);
            expansion.features(&text.placeholder, each);
            after.write(&values, &mut expansion);
        }
        outro.write(&values, &mut expansion);
        expansion
    }
}

impl TimeFormat {
    fn write(self, seconds: f64) -> String {
        match self {
            TimeFormat::MinutesSeconds => {
                let seconds = seconds as u64;
                format!("{:02}:{:02}", seconds / 60, seconds % 60)
            }
            TimeFormat::Tenths => format!("{seconds:.1}"),
            TimeFormat::Seconds => (seconds as u64).to_string(),
        }
    }
}

impl FeatureCount {
    fn of_view(&self, size: Size) -> usize {
        match *self {
            FeatureCount::Fixed(count) => count as usize,
            FeatureCount::Area {
                unit,
                divide,
                add,
                round_up,
            } => {
                let units = |side: u32| {
                    let units = if round_up {
                        side.div_ceil(unit)
                    } else {
                        side / unit
                    };
                    u64::from(units)
                };
                let area = units(size.height) * units(size.width) / u64::from(divide);
                area.saturating_add_signed(add) as usize
            }
            FeatureCount::AnyResolution { side, add, .. } => {
                (u64::from(side) * u64::from(side)).saturating_add_signed(add) as usize
            }
        }
    }

    /// LLaVA-OneVision pools the features of frames by two.
    fn of_frame(&self, size: Size) -> usize {
        match *self {
            FeatureCount::AnyResolution { side, .. } => {
                let side = side.div_ceil(2) as usize;
                side * side
            }
            _ => self.of_view(size),
        }
    }

    fn any_resolution(&self, views: &ImageViews<'_>) -> usize {
        let FeatureCount::AnyResolution {
            side,
            max_tiles,
            add,
        } = *self
        else {
            return 0;
        };
        let base = u64::from(side) * u64::from(side);
        let tiles = match (views.resolution, views.views.first()) {
            (Some(resolution), Some(view)) if views.images == 1 => {
                let rows = resolution.height / view.size.height * side;
                let columns = resolution.width / view.size.width * side;
                unpadded_features(views.image, rows, columns, side, max_tiles)
            }
            // Of several images each has the whole view only, and one newline.
            _ => 1,
        };
        (base + tiles).saturating_add_signed(add) as usize
    }
}

/// The features of a grid without its padding, with a newline per row.
fn unpadded_features(image: Size, rows: u32, columns: u32, side: u32, max_tiles: u32) -> u64 {
    let (width, height) = (f64::from(image.width), f64::from(image.height));
    let (mut rows, mut columns) = (f64::from(rows), f64::from(columns));
    // The reference rounds to seven decimals before it truncates.
    let truncate = |value: f64| ((value * 1e7).round_ties_even() / 1e7).trunc();
    if width / height > columns / rows {
        let shown = truncate(height * (columns / width));
        rows -= ((rows - shown) / 2.0).floor() * 2.0;
    } else {
        let shown = truncate(width * (rows / height));
        columns -= ((columns - shown) / 2.0).floor() * 2.0;
    }
    let most = f64::from(max_tiles) * f64::from(side) * f64::from(side);
    let ratio = (rows * columns / most).sqrt();
    if ratio > 1.1 {
        rows = floor_divide(rows, ratio);
        columns = floor_divide(columns, ratio);
    }
    (rows * columns + rows) as u64
}

/// Python's `//`: exact where the rounded quotient would reach the next whole number.
fn floor_divide(value: f64, by: f64) -> f64 {
    ((value - value % by) / by).round()
}

/// Replaces the markers of a prompt, in order. A missing or surplus marker is an error.
///
/// Markers must come from the chat template: text of users that contains them must be escaped
/// before, as for any special token.
pub fn expand_prompt(
    rules: &PromptRules,
    bos: &str,
    prompt: &str,
    images: &[&Expansion],
    videos: &[&Expansion],
) -> Result<Vec<Piece>, MediaError> {
    let count = |marker: &str| prompt.matches(marker).count();
    let check = |kind, marker: &str, items: usize| {
        let markers = count(marker);
        if markers == items {
            return Ok(());
        }
        Err(MediaError::MarkerCount {
            kind,
            marker: marker.to_string(),
            markers,
            items,
        })
    };
    check("images", &rules.image_marker, images.len())?;
    let video_marker = rules.video.as_ref().map(|video| video.marker.as_str());
    match video_marker {
        Some(marker) => check("videos", marker, videos.len())?,
        None if !videos.is_empty() => return Err(MediaError::VideoUnsupported),
        None => {}
    }
    let mut expanded = Expansion::default();
    let bos_after = rules.frame == PromptFrame::BosAfterImages;
    if bos_after && images.is_empty() {
        expanded.token(bos.to_string());
    }
    let (mut images, mut videos) = (images.iter(), videos.iter());
    let mut rest = prompt;
    loop {
        let image = rest.find(&rules.image_marker);
        let video = video_marker.and_then(|marker| rest.find(marker));
        let is_image = match (image, video) {
            (None, None) => break,
            (Some(image), Some(video)) => image < video,
            (image, _) => image.is_some(),
        };
        let (at, marker, item) = if is_image {
            (image, rules.image_marker.as_str(), images.next())
        } else {
            (video, video_marker.unwrap_or_default(), videos.next())
        };
        let at = at.unwrap_or_default();
        expanded.text(&rest[..at]);
        for piece in item.iter().flat_map(|item| &item.pieces) {
            match piece {
                Piece::Text(text) => expanded.text(text),
                piece => expanded.pieces.push(piece.clone()),
            }
        }
        rest = &rest[at + marker.len()..];
        if bos_after && is_image && images.len() == 0 {
            expanded.token(bos.to_string());
        }
    }
    expanded.text(rest);
    if bos_after {
        expanded.text("\n");
    }
    Ok(expanded.pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_python_does() {
        for (seconds, tenths, minutes) in [
            (0.25, "0.2", "00:00"),
            (0.75, "0.8", "00:00"),
            (65.05, "65.0", "01:05"),
            (3_661.0, "3661.0", "61:01"),
        ] {
            assert_eq!(TimeFormat::Tenths.write(seconds), tenths);
            assert_eq!(TimeFormat::MinutesSeconds.write(seconds), minutes);
        }
    }

    #[test]
    fn tiles_are_counted_as_transformers_does() {
        // LLaVA-OneVision's 27 × 27 features per tile, computed with transformers 5.22.2.
        for (width, height, rows, columns, expected) in [
            (1613, 2651, 6, 4, 7281),
            (2073, 3446, 6, 4, 7281),
            (1193, 964, 3, 4, 7209),
        ] {
            let image = Size::new(width, height);
            let tiles = unpadded_features(image, rows * 27, columns * 27, 27, 9);
            assert_eq!(tiles + 27 * 27, expected, "{width}x{height}");
        }
    }

    #[test]
    fn neighbouring_texts_and_runs_are_joined() {
        let tokens = BTreeMap::from([("end", "<end>".to_string())]);
        let mut expansion = Expansion::default();
        expansion.text("a");
        Template::parse("b{end}{index}", &tokens).write(
            &Values {
                index: 3,
                ..Values::default()
            },
            &mut expansion,
        );
        expansion.features("<x>", 2);
        expansion.features("<x>", 1);
        assert_eq!(
            expansion.pieces,
            [
                Piece::Text("ab".into()),
                Piece::Token("<end>".into()),
                Piece::Text("3".into()),
                Piece::Features {
                    token: "<x>".into(),
                    count: 3
                },
            ]
        );
        assert_eq!(expansion.positions(), 3);
    }
}

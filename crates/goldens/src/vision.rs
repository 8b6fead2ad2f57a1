//! References of models that read pictures: cases with preprocessed values, and how the values
//! become media.

use std::ops::Range;
use std::path::Path;

use loquat_session::{Media, Picture, Tiling, View};
use loquat_spec::{Config, Grid, PixelInput, VisionSpec};
use loquat_weights::{Blob, RawTensor, safetensors};
use serde::Deserialize;

use crate::discover::GOLDEN;
use crate::golden::{Arrays, GoldenError, floats, tokens};

/// Names in the reference, and for display.
const CASES: [(&str, &str); 4] = [
    ("one", "one image"),
    ("two", "two images"),
    ("text", "text"),
    ("video", "video"),
];

pub struct VisionGolden {
    pub cases: Vec<VisionCase>,
    pub info: Info,
}

/// The fields of `golden.json` that the judge uses.
#[derive(Deserialize, Default)]
pub struct Info {
    /// Of the whole model.
    pub model_type: String,
    pub placeholder_ids: Vec<u32>,
    /// How far the reference's logits are from its own in double precision, if it has those.
    pub fp32_vs_fp64: Option<f32>,
}

/// A prompt with its media and what the reference computed.
pub struct VisionCase {
    pub name: &'static str,
    pub title: &'static str,
    pub tokens: Vec<u32>,
    pub logits: Vec<f32>,
    pub greedy_ids: Vec<u32>,
    pub greedy_logits: Vec<f32>,
    /// Level 0, then deepstack: rows at the placeholders, in order.
    pub features: Vec<Vec<f32>>,
    arrays: CaseArrays,
}

/// A shape and its values.
type ShapedValues = (Vec<usize>, Vec<f32>);

/// The processor's outputs for a case.
struct CaseArrays(Vec<(String, RawTensor)>);

impl CaseArrays {
    fn find(&self, name: &str) -> Option<&RawTensor> {
        let mut arrays = self.0.iter();
        arrays
            .find(|(found, _)| found == name)
            .map(|(_, array)| array)
    }

    fn floats(&self, name: &str) -> Result<Option<ShapedValues>, GoldenError> {
        let Some(array) = self.find(name) else {
            return Ok(None);
        };
        Ok(Some((array.shape.clone(), floats(array)?)))
    }

    /// Signed numbers in rows of the last dimension.
    fn rows(&self, name: &str) -> Option<Vec<Vec<i32>>> {
        let array = self.find(name)?;
        let width = array.shape.last().copied().filter(|width| *width > 0)?;
        let words = array.data.as_chunks::<4>().0.iter();
        let numbers: Vec<i32> = words.map(|word| i32::from_le_bytes(*word)).collect();
        Some(numbers.chunks(width).map(<[i32]>::to_vec).collect())
    }
}

impl VisionGolden {
    /// `None` if the folder's reference is one of text.
    pub fn open(folder: &Path) -> Result<Option<Self>, GoldenError> {
        let path = folder.join(GOLDEN);
        let arrays = Arrays(safetensors::parse(Blob::map(&path)?, &path)?);
        if arrays.find("text.input_ids").is_none() {
            return Ok(None);
        }
        let path = folder.join("golden.json");
        let text = std::fs::read_to_string(&path).map_err(|source| GoldenError::Io {
            path: path.clone(),
            source,
        })?;
        let info = serde_json::from_str(&text).map_err(|source| GoldenError::Json {
            path: path.clone(),
            source,
        })?;
        let mut cases = Vec::new();
        for (name, title) in CASES {
            if arrays.find(&format!("{name}.input_ids")).is_some() {
                cases.push(case(&arrays, (name, title))?);
            }
        }
        Ok(Some(Self { cases, info }))
    }
}

fn case(
    arrays: &Arrays,
    (name, title): (&'static str, &'static str),
) -> Result<VisionCase, GoldenError> {
    let own = arrays.0.iter().filter_map(|array| {
        let rest = array.name.strip_prefix(name)?.strip_prefix('.')?;
        Some((rest.to_owned(), array.clone()))
    });
    let own = CaseArrays(own.collect());
    let required = |name: &str| {
        own.find(name).ok_or_else(|| GoldenError::Missing {
            names: vec![name.to_owned()],
        })
    };
    let levels = std::iter::once("image_features".to_owned());
    let levels = levels.chain((0..).map(|level| format!("deepstack_{level}")));
    let mut features = Vec::new();
    for level in levels {
        match own.find(&level) {
            Some(array) => features.push(floats(array)?),
            None => break,
        }
    }
    Ok(VisionCase {
        name,
        title,
        tokens: tokens(required("input_ids")?)?,
        logits: floats(required("logits")?)?,
        greedy_ids: tokens(required("greedy_ids")?)?,
        greedy_logits: floats(required("greedy_logits")?)?,
        features,
        arrays: own,
    })
}

impl VisionCase {
    /// Runs of placeholders in the prompt.
    pub fn runs(&self, placeholders: &[u32]) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            if !placeholders.contains(token) {
                continue;
            }
            match runs.last_mut().filter(|run| run.end == at) {
                Some(run) => run.end += 1,
                None => runs.push(at..at + 1),
            }
        }
        runs
    }

    /// The case's media, in the order of the placeholders.
    pub fn media(
        &self,
        vision: &VisionSpec,
        config: &Config,
        runs: usize,
    ) -> Result<Vec<Media>, GoldenError> {
        let is_video = self.name.starts_with("video");
        let name = if self.arrays.find("pixel_values_videos").is_some() {
            "pixel_values_videos"
        } else {
            "pixel_values"
        };
        let Some((shape, values)) = self.arrays.floats(name)? else {
            return Ok(Vec::new());
        };
        if let Some(grids) = self.grids() {
            return Ok(self.gridded(vision, (&grids, &values), (is_video, runs)));
        }
        let views = match vision.patch.input {
            PixelInput::Planes => self.planes(vision, &shape, &values),
            PixelInput::Patches => self.padded_patches(&shape, &values),
        };
        let picture = |views: Vec<View>| Picture {
            views,
            ..Picture::default()
        };
        if is_video {
            return Ok(vec![Media::Video(picture(views))]);
        }
        if shape.len() == 5 && shape[0] == 1 && self.arrays.find("image_sizes").is_some() {
            return Ok(vec![self.tiled(config, views)]);
        }
        // Where each run of placeholders is a picture, each picture is encoded by itself.
        if views.len() == runs || shape.len() == 5 && self.arrays.find("image_sizes").is_some() {
            let alone = views
                .into_iter()
                .map(|view| Media::Image(picture(vec![view])));
            return Ok(alone.collect());
        }
        Ok(vec![Media::Image(picture(views))])
    }

    fn grids(&self) -> Option<Vec<Grid>> {
        let rows = self.arrays.rows("image_grid_thw");
        let rows = rows.or_else(|| self.arrays.rows("video_grid_thw"))?;
        let grid = |row: &Vec<i32>| Grid {
            frames: row[0] as usize,
            rows: row[1] as usize,
            cols: row[2] as usize,
        };
        Some(rows.iter().map(grid).collect())
    }

    /// Flattened patches of grids that the processor lists.
    fn gridded(
        &self,
        vision: &VisionSpec,
        (grids, values): (&[Grid], &[f32]),
        (is_video, runs): (bool, usize),
    ) -> Vec<Media> {
        let mut rest = values;
        let mut media = Vec::new();
        for grid in grids {
            let len = grid.frames * grid.rows * grid.cols * vision.patch.values();
            let (own, after) = rest.split_at(len);
            rest = after;
            // Text between the frames makes each of them a view.
            let apart = is_video && runs == grid.frames && runs > 1;
            let views = if apart {
                let frame = Grid { frames: 1, ..*grid };
                let frames = own.chunks(len / grid.frames);
                let view = |values: &[f32]| View {
                    grid: frame,
                    values: values.to_vec(),
                };
                frames.map(view).collect()
            } else {
                vec![View {
                    grid: *grid,
                    values: own.to_vec(),
                }]
            };
            let seconds = self.arrays.find("second_per_grid_ts");
            let seconds = seconds.and_then(|array| floats(array).ok());
            let picture = Picture {
                views,
                tiling: None,
                seconds_per_frame: seconds.and_then(|all| all.first().copied()),
            };
            media.push(if is_video {
                Media::Video(picture)
            } else {
                Media::Image(picture)
            });
        }
        media
    }

    /// Planes, without the padding of smaller pictures.
    fn planes(&self, vision: &VisionSpec, shape: &[usize], values: &[f32]) -> Vec<View> {
        let [.., channels, height, width] = *shape else {
            return Vec::new();
        };
        let side = vision.patch.side;
        let sizes = match shape.len() {
            // Of tiled pictures, they are the sizes before preprocessing.
            5 => None,
            _ => self.arrays.rows("image_sizes"),
        };
        let views = values.chunks(channels * height * width).enumerate();
        let view = |(index, values): (usize, &[f32])| {
            let (rows, cols) = match &sizes {
                Some(sizes) => (sizes[index][0] as usize, sizes[index][1] as usize),
                None => (height, width),
            };
            let lines = values.chunks(width).enumerate();
            let lines = lines.filter(|(line, _)| line % height < rows);
            View {
                grid: Grid {
                    frames: 1,
                    rows: rows / side,
                    cols: cols / side,
                },
                values: lines.flat_map(|(_, line)| &line[..cols]).copied().collect(),
            }
        };
        views.map(view).collect()
    }

    /// Flattened patches, padded to the largest view.
    fn padded_patches(&self, shape: &[usize], values: &[f32]) -> Vec<View> {
        let [.., count, width] = *shape else {
            return Vec::new();
        };
        let shapes = self.arrays.rows("spatial_shapes");
        let places = self.arrays.rows("image_position_ids");
        let places = places.or_else(|| self.arrays.rows("video_position_ids"));
        let views = values.chunks(count * width).enumerate();
        let view = |(index, values): (usize, &[f32])| {
            let (rows, cols) = match (&shapes, &places) {
                (Some(shapes), _) => (shapes[index][0], shapes[index][1]),
                (None, Some(places)) => {
                    let own = &places[index * count..(index + 1) * count];
                    let most = |axis: usize| own.iter().map(|place| place[axis]).max();
                    (most(1).unwrap_or(0) + 1, most(0).unwrap_or(0) + 1)
                }
                (None, None) => (0, 0),
            };
            let (rows, cols) = (rows as usize, cols as usize);
            View {
                grid: Grid {
                    frames: 1,
                    rows,
                    cols,
                },
                values: values[..rows * cols * width].to_vec(),
            }
        };
        views.map(view).collect()
    }

    /// One picture in tiles, whose grid is the best of those that the config lists.
    fn tiled(&self, config: &Config, views: Vec<View>) -> Media {
        let sizes = self.arrays.rows("image_sizes").unwrap_or_default();
        let [height, width] = sizes.first().map_or([1, 1], |size| [size[0], size[1]]);
        let pinpoints = config.array("image_grid_pinpoints").ok().flatten();
        let pinpoints = pinpoints.unwrap_or_default().iter().filter_map(|point| {
            let side = |index: usize| point.get(index)?.as_i64();
            Some((side(0)?, side(1)?))
        });
        let (height, width) = (i64::from(height), i64::from(width));
        let fit = |(rows, cols): &(i64, i64)| {
            let scale = (*cols as f64 / width as f64).min(*rows as f64 / height as f64);
            let area = (width as f64 * scale) as i64 * (height as f64 * scale) as i64;
            let useful = area.min(width * height);
            (useful, useful - rows * cols)
        };
        // The first of equals, as the reference's loop finds it.
        let best = pinpoints.fold(None, |best: Option<(i64, i64)>, point| match best {
            Some(known) if fit(&known) >= fit(&point) => Some(known),
            _ => Some(point),
        });
        let vision = config.object("vision_config").ok().flatten();
        let side = vision.and_then(|vision| vision.usize("image_size").ok());
        let side = side.unwrap_or(1) as i64;
        let (rows, cols) = best.unwrap_or((side, side));
        Media::Image(Picture {
            views,
            tiling: Some(Tiling {
                rows: (rows / side) as usize,
                cols: (cols / side) as usize,
                height: height as usize,
                width: width as usize,
            }),
            seconds_per_frame: None,
        })
    }
}

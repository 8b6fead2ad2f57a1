//! Encoding of one picture by the model's vision tower, without decoding or resizing a file.

use std::time::Instant;

use loquat::ModelFiles;
use loquat_session::{Capabilities, Media, Memory, Picture, Session, SessionError, View};
use loquat_spec::{Grid, ModelSpec, VisionSpec};
use serde_json::json;

use super::error::BenchError;
use super::random::Random;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::median;
use super::{Harness, Scenario};

pub struct Encoding {
    /// Rows and columns of pixels. Towers of one size take pictures of that size instead.
    pub side: usize,
    pub rounds: usize,
    pub seed: u64,
}

impl Encoding {
    /// The patches of a square picture.
    fn grid(&self, vision: &VisionSpec) -> Result<Grid, BenchError> {
        let patch = vision.patch.side;
        let side = match vision.fixed_patches() {
            Some(patches) => patches.isqrt(),
            None => self.side / patch,
        };
        let grid = Grid {
            frames: 1,
            rows: side,
            cols: side,
        };
        let block = patch * vision.projector.merged_side();
        match vision.merged(grid) {
            Some(_) => Ok(grid),
            None => Err(BenchError::Usage {
                what: format!("`--encode {}`", self.side),
                expected: format!("a multiple of {block} for this model"),
            }),
        }
    }
}

impl Scenario for Encoding {
    fn name(&self) -> &'static str {
        "encode"
    }

    fn sequences(&self) -> usize {
        1
    }

    fn check(&self, _: &Capabilities, _: &Memory) -> Result<(), BenchError> {
        Ok(())
    }

    fn prepare(&mut self, model: &ModelFiles) -> Result<(), BenchError> {
        self.grid(vision(&model.source.spec)?).map(drop)
    }

    fn run(
        &self,
        mut session: Box<dyn Session>,
        harness: &Harness<'_>,
    ) -> Result<Report, BenchError> {
        let vision = vision(&harness.model.source.spec)?;
        let grid = self.grid(vision)?;
        let patches = grid.rows * grid.cols;
        let mut random = Random::new(self.seed, 0);
        let values =
            (0..patches * vision.patch.values()).map(|_| 2.0 * random.share() as f32 - 1.0);
        let media = Media::Image(Picture {
            views: vec![View {
                grid,
                values: values.collect(),
            }],
            ..Picture::default()
        });
        let failed = |error: SessionError| BenchError::Engine(error.into());
        let mut seconds = Vec::new();
        let mut positions = 0;
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            let started = Instant::now();
            let handle = session.encode(&media).map_err(failed)?;
            if round > 0 {
                seconds.push(started.elapsed().as_secs_f64());
            }
            positions = handle.positions;
            session.release_media(handle.id).map_err(failed)?;
            harness.progress(round + 1, self.rounds + 1);
        }
        let mut table = Table::new(&["patches", "positions", "seconds"]);
        table.row([
            patches.to_string(),
            positions.to_string(),
            number(median(&seconds), 3),
        ]);
        Ok(Report::new(
            rounds_heading(self.rounds),
            table.text(),
            json!({
                "patches": patches,
                "positions": positions,
                "seconds": median(&seconds),
                "seconds_rounds": seconds,
            }),
        ))
    }
}

fn vision(spec: &ModelSpec) -> Result<&VisionSpec, BenchError> {
    spec.vision.as_ref().ok_or_else(|| BenchError::Usage {
        what: "the model of `--encode`".to_owned(),
        expected: "one that takes images".to_owned(),
    })
}

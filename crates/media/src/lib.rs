//! Turns images and videos into the pixel values that a vision tower reads, and says how a prompt
//! names them: decoding within limits, resizing, tiling, normalising, flattening into patches,
//! sampling frames, and expanding placeholders, all as the model's own processor files describe.
//!
//! A processor class is data ([`Processor`]): the files of a checkpoint choose the rules, and one
//! interpreter follows them. This crate runs no model, tokenizes nothing and fetches nothing.
//!
//! ```no_run
//! use loquat_media::{Limits, ProcessorFiles, Processor, Raster};
//!
//! let limits = Limits::default();
//! let files = ProcessorFiles::read(std::path::Path::new("model"), &limits)?;
//! let processor = Processor::from_files(&files)?;
//! let raster = Raster::decode(&std::fs::read("cat.png")?, &limits)?;
//! let media = processor.image(&raster, 1, &limits)?;
//! println!("{} positions", media.positions());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod decode;
mod error;
mod execute;
mod expansion;
mod limits;
mod number_words;
mod output;
pub mod plan;
mod processor;
mod raster;
pub mod resample;
pub mod rules;
mod size;
mod tiles;
pub mod video;

pub use decode::{ImageFormat, ImageInfo, probe};
pub use error::{Blame, MediaError};
pub use expansion::{Expansion, Piece, expand_prompt};
pub use limits::Limits;
pub use output::{Layout, MediaPixels, View, ViewRole};
pub use processor::{MediaPlan, Processor, ProcessorFiles};
pub use raster::Raster;
pub use video::{FrameSource, SampleOptions, Video, VideoMetadata};

//! Media in prompts.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use loquat_session::{Media, MediaInputs};
use sha2::{Digest, Sha256};

use crate::EngineError;

/// A picture, a video or raw embeddings, as the session encodes them, with the hash by which equal
/// ones are recognized. Requests share it.
#[derive(Clone, PartialEq)]
pub struct MediaContent {
    media: Media,
    positions: usize,
    hash: MediaHash,
}

/// Of everything that the session reads.
pub(crate) type MediaHash = [u8; 32];

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptSpan {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Positions `range` of the content.
    Media {
        /// Encoded when the request starts.
        content: Arc<MediaContent>,
        /// Not empty.
        range: Range<usize>,
    },
}

/// Positions of a prompt that media fill instead of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptMedia {
    /// The first position in the prompt.
    pub at: usize,
    /// The content.
    pub content: Arc<MediaContent>,
    /// Which of its positions.
    pub range: Range<usize>,
}

impl PromptMedia {
    /// The first position of the prompt after it.
    pub fn end(&self) -> usize {
        self.at + self.range.len()
    }
}

impl MediaContent {
    /// `positions` is how many the model uses for it, as its processor counted them; a session
    /// that counts otherwise refuses the request.
    pub fn new(media: Media, positions: usize) -> Self {
        let hash = hash(&media);
        Self {
            media,
            positions,
            hash,
        }
    }

    /// What is encoded.
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// Positions of all of it.
    pub fn positions(&self) -> usize {
        self.positions
    }

    pub(crate) fn hash(&self) -> &MediaHash {
        &self.hash
    }

    fn is_accepted(&self, inputs: &MediaInputs) -> Result<(), &'static str> {
        match self.media {
            Media::Image(_) if !inputs.images => Err("this model does not read images"),
            Media::Video(_) if !inputs.videos => Err("this model does not read videos"),
            Media::Embeddings(_) if !inputs.embeddings => {
                Err("the session was opened without room for raw embeddings")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for MediaContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaContent")
            .field("positions", &self.positions)
            .finish_non_exhaustive()
    }
}

/// A prompt of spans as one entry per position, and the media among them.
pub fn join_spans(spans: Vec<PromptSpan>) -> (Vec<u32>, Vec<PromptMedia>) {
    /// Never read; every vocabulary has it.
    const PLACEHOLDER: u32 = 0;
    let (mut tokens, mut media) = (Vec::new(), Vec::new());
    for span in spans {
        match span {
            PromptSpan::Tokens(own) => tokens.extend(own),
            PromptSpan::Media { content, range } => {
                let at = tokens.len();
                tokens.resize(at + range.len(), PLACEHOLDER);
                media.push(PromptMedia { at, content, range });
            }
        }
    }
    (tokens, media)
}

/// Refuses spans that are not part of a prompt of `len` positions, or that the session cannot
/// encode.
pub(crate) fn validate(
    media: &[PromptMedia],
    len: usize,
    (inputs, capacity): (&MediaInputs, usize),
) -> Result<(), EngineError> {
    let field = "media";
    let refuse = |found: String, expected: String| {
        Err(EngineError::OutOfRange {
            field,
            found,
            expected,
        })
    };
    let mut earlier = 0;
    let mut contents: Vec<(&MediaHash, usize)> = Vec::new();
    for span in media {
        let accepted = span.content.is_accepted(inputs);
        accepted.map_err(|why| EngineError::Unsupported { field, why })?;
        let (range, positions) = (&span.range, span.content.positions());
        if range.is_empty() || range.end > positions {
            let found = format!("positions {} to {}", range.start, range.end);
            return refuse(found, format!("within the content's {positions}"));
        }
        if span.at < earlier || span.end() > len {
            let found = format!("at position {}", span.at);
            return refuse(found, "in order and within the prompt".to_owned());
        }
        earlier = span.end();
        contents.push((span.content.hash(), positions));
    }
    contents.sort_unstable();
    contents.dedup();
    let positions: usize = contents.iter().map(|(_, positions)| positions).sum();
    if positions > capacity {
        let found = format!("{positions} positions");
        return refuse(found, format!("at most {capacity}, which fit the session"));
    }
    Ok(())
}

fn hash(media: &Media) -> MediaHash {
    let mut hasher = Sha256::new();
    let mut number = |value: usize| hasher.update((value as u64).to_le_bytes());
    let views: Vec<&[f32]> = match media {
        Media::Embeddings(values) => {
            number(0);
            vec![values]
        }
        Media::Image(picture) | Media::Video(picture) => {
            number(1 + usize::from(matches!(media, Media::Video(_))));
            number(picture.views.len());
            for view in &picture.views {
                let grid = view.grid;
                let sides = [grid.frames, grid.rows, grid.cols];
                sides.into_iter().for_each(&mut number);
            }
            let tiling = picture.tiling.map(|t| [t.rows, t.cols, t.height, t.width]);
            number(usize::from(tiling.is_some()));
            let tiling = tiling.unwrap_or_default().into_iter();
            tiling.for_each(&mut number);
            let seconds = picture.seconds_per_frame;
            number(usize::from(seconds.is_some()));
            number(seconds.unwrap_or_default().to_bits() as usize);
            picture.views.iter().map(|view| &view.values[..]).collect()
        }
    };
    let mut bytes = Vec::with_capacity(4 * 1024);
    for values in views {
        hasher.update((values.len() as u64).to_le_bytes());
        for block in values.chunks(1024) {
            bytes.clear();
            bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
            hasher.update(&bytes);
        }
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use loquat_session::{Picture, View};

    use super::*;

    fn picture(rows: usize, values: &[f32]) -> Picture {
        let grid = loquat_session::Grid {
            frames: 1,
            rows,
            cols: values.len() / rows,
        };
        Picture {
            views: vec![View {
                grid,
                values: values.to_vec(),
            }],
            ..Picture::default()
        }
    }

    #[test]
    fn hash_covers_values_and_shape() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let base = hash(&Media::Image(picture(1, &values)));
        assert_eq!(base, hash(&Media::Image(picture(1, &values))));
        let timed = Picture {
            seconds_per_frame: Some(1.0),
            ..picture(1, &values)
        };
        for other in [
            Media::Image(picture(2, &values)),
            Media::Image(picture(1, &[1.0, 2.0, 3.0, -4.0])),
            Media::Video(picture(1, &values)),
            Media::Embeddings(values.to_vec()),
            Media::Image(timed),
        ] {
            assert_ne!(base, hash(&other), "{other:?}");
        }
    }
}

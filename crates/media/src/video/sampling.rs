//! Which frames of a video a model takes, as each processor class chooses them.

use super::VideoMetadata;
use crate::error::MediaError;

/// How frame numbers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingMethod {
    /// `i × total / n`, whole numbers.
    Uniform,
    /// Qwen2-VL: `i × (total / n)`, and `n` is a multiple of the temporal patch.
    Stride,
    /// Qwen3-VL: first and last frame included, rounded.
    EvenlySpaced,
    /// GLM-4V: by seconds, an even number of frames.
    Seconds,
    /// InternVL: the middles of `n` equal parts.
    Centers,
    /// SmolVLM: first and last frame included, without the first and last second of long videos.
    Trimmed,
}

/// A model's sampling rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub method: SamplingMethod,
    /// Whether the processor samples unless told otherwise.
    pub enabled: bool,
    pub fps: Option<f64>,
    pub num_frames: Option<u64>,
    pub min_frames: u64,
    pub max_frames: u64,
    pub max_seconds: Option<f64>,
    /// Frames that share a patch.
    pub multiple: u32,
}

/// What a request says about sampling; by default nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampleOptions {
    pub fps: Option<f64>,
    pub num_frames: Option<u64>,
    /// All frames, whatever the processor says.
    pub all_frames: bool,
}

impl Sampling {
    /// The numbers of the sampled frames, ascending; a number may repeat. If a model wants more
    /// frames than the video has, it gets all (transformers refuses some of these).
    pub fn indices(
        &self,
        metadata: &VideoMetadata,
        options: &SampleOptions,
    ) -> Result<Vec<usize>, MediaError> {
        let total = metadata.total_frames;
        if total == 0 {
            return Err(MediaError::NoFrames);
        }
        let requested = options.fps.is_some() || options.num_frames.is_some();
        if options.all_frames || !(self.enabled || requested) {
            return Ok((0..total).collect());
        }
        let (fps, frames) = match (options.fps, options.num_frames) {
            (None, None) => (self.fps, self.num_frames),
            asked => asked,
        };
        let fps = fps.filter(|fps| fps.is_finite() && *fps > 0.0);
        let frames = frames.map(|frames| frames.max(1));
        let indices = match self.method {
            SamplingMethod::Uniform => {
                let count = self.count(metadata, fps, frames)?.unwrap_or(total);
                (0..count).map(|index| index * total / count).collect()
            }
            SamplingMethod::Centers => {
                let count = self.count(metadata, fps, frames)?.unwrap_or(total);
                let step = total as f64 / count as f64;
                (0..count)
                    .map(|index| ((step / 2.0 + index as f64 * step) as usize).min(total - 1))
                    .collect()
            }
            SamplingMethod::Stride => self.stride(metadata, fps, frames)?,
            SamplingMethod::EvenlySpaced => {
                // A rate is assumed where it is unknown, as the reference does.
                let source = metadata.fps.unwrap_or(super::DEFAULT_FPS);
                let by_rate = fps.map(|fps| (total as f64 / source * fps) as u64);
                let count = match (frames, by_rate) {
                    (Some(frames), _) => frames.min(total as u64),
                    (None, by_rate) => by_rate
                        .unwrap_or(total as u64)
                        .clamp(self.min_frames, self.max_frames.max(self.min_frames))
                        .min(total as u64),
                };
                let round = |value: f64| value.round_ties_even() as usize;
                spread(0.0, (total - 1) as f64, count as usize)
                    .map(round)
                    .collect()
            }
            SamplingMethod::Seconds => self.seconds(metadata, fps)?,
            SamplingMethod::Trimmed => trimmed(metadata, fps, frames)?,
        };
        Ok(indices)
    }

    /// At least one frame, at most all.
    fn count(
        &self,
        metadata: &VideoMetadata,
        fps: Option<f64>,
        frames: Option<u64>,
    ) -> Result<Option<usize>, MediaError> {
        let count = match (frames, fps) {
            (Some(frames), _) => frames,
            (None, Some(fps)) => {
                let source = metadata.fps.ok_or(MediaError::UnknownFrameRate)?;
                (metadata.total_frames as f64 / source * fps) as u64
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(count.clamp(1, metadata.total_frames as u64) as usize))
    }

    fn stride(
        &self,
        metadata: &VideoMetadata,
        fps: Option<f64>,
        frames: Option<u64>,
    ) -> Result<Vec<usize>, MediaError> {
        let total = metadata.total_frames;
        let multiple = f64::from(self.multiple.max(1));
        let count = match (frames, fps) {
            (Some(frames), _) => (frames as f64 / multiple).round_ties_even() * multiple,
            (None, Some(fps)) => {
                let source = metadata.fps.ok_or(MediaError::UnknownFrameRate)?;
                let most = (self.max_frames.min(total as u64) as f64 / multiple).floor() * multiple;
                let count = (total as f64 / source * fps)
                    .max(self.min_frames as f64)
                    .min(most)
                    .min(total as f64);
                (count / multiple).floor() * multiple
            }
            (None, None) => total as f64,
        };
        let count = (count as usize).clamp(1, total);
        let step = total as f64 / count as f64;
        Ok((0..count)
            .map(|index| ((index as f64 * step) as usize).min(total - 1))
            .collect())
    }

    fn seconds(
        &self,
        metadata: &VideoMetadata,
        fps: Option<f64>,
    ) -> Result<Vec<usize>, MediaError> {
        let source = metadata.fps.ok_or(MediaError::UnknownFrameRate)?;
        let fps = fps.unwrap_or(2.0);
        let total = metadata.total_frames;
        let last = total - 1;
        let duration = total as f64 / source;
        let at = |seconds: f64| ((seconds * source).ceil() as usize).min(last);
        let max_seconds = self.max_seconds.unwrap_or(f64::INFINITY);
        let mut indices: Vec<usize> = if duration <= max_seconds {
            // More samples than frames would only repeat frames.
            let count = ((duration * fps).floor().max(1.0) as usize).min(total.saturating_mul(64));
            (0..count)
                .map(|index| ((index as f64 * source / fps).ceil() as usize).min(last))
                .collect()
        } else {
            let count = (max_seconds * fps) as usize;
            if count >= total {
                (0..total).collect()
            } else {
                spread(0.0, duration, count).map(at).collect()
            }
        };
        indices.dedup();
        if indices.len() % 2 == 1 {
            indices.push(indices[indices.len() - 1]);
        }
        Ok(indices)
    }
}

fn trimmed(
    metadata: &VideoMetadata,
    fps: Option<f64>,
    frames: Option<u64>,
) -> Result<Vec<usize>, MediaError> {
    let source = metadata.fps.ok_or(MediaError::UnknownFrameRate)?;
    let total = metadata.total_frames;
    let duration = total as f64 / source;
    let most = frames.map_or(total as f64, |frames| frames as f64);
    let rate = fps.unwrap_or(source);
    let count = (rate * duration).round_ties_even().min(most).max(1.0);
    let count = (count as usize).min(total);
    let (mut start, mut end) = (0, total - 1);
    if duration - 2.0 > most * rate {
        start = source as usize;
        end = ((total as f64 - source) as usize).min(total - 1);
    }
    if start >= end {
        (start, end) = (0, total - 1);
    }
    let mut indices: Vec<usize> = spread(start as f64, end as f64, count)
        .map(|index| index as usize)
        .collect();
    indices.dedup();
    Ok(indices)
}

/// `count` numbers from `start` to `end`, both included, as NumPy's `linspace`.
fn spread(start: f64, end: f64, count: usize) -> impl Iterator<Item = f64> {
    let step = if count > 1 {
        (end - start) / (count - 1) as f64
    } else {
        0.0
    };
    (0..count).map(move |index| {
        if index > 0 && index + 1 == count {
            end
        } else {
            start + index as f64 * step
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(method: SamplingMethod) -> Sampling {
        Sampling {
            method,
            enabled: true,
            fps: None,
            num_frames: None,
            min_frames: 4,
            max_frames: 768,
            max_seconds: Some(300.0),
            multiple: 2,
        }
    }

    fn video(total_frames: usize, fps: f64) -> VideoMetadata {
        VideoMetadata {
            width: 8,
            height: 8,
            total_frames,
            fps: Some(fps),
        }
    }

    #[test]
    fn frames_agree_with_transformers() {
        use SamplingMethod::{Centers, EvenlySpaced, Seconds, Stride, Trimmed, Uniform};
        let rate = |fps| SampleOptions {
            fps: Some(fps),
            ..SampleOptions::default()
        };
        let frames = |count| SampleOptions {
            num_frames: Some(count),
            ..SampleOptions::default()
        };
        let both = SampleOptions {
            fps: Some(1.0),
            num_frames: Some(3),
            ..SampleOptions::default()
        };
        // Computed with transformers 5.22.2.
        let cases: &[(SamplingMethod, SampleOptions, usize, f64, &[usize])] = &[
            (Uniform, frames(4), 10, 10.0, &[0, 2, 5, 7]),
            (Uniform, rate(2.0), 10, 5.0, &[0, 2, 5, 7]),
            (Stride, frames(5), 10, 5.0, &[0, 2, 5, 7]),
            (Stride, rate(1.0), 50, 10.0, &[0, 12, 25, 37]),
            (
                EvenlySpaced,
                rate(2.0),
                100,
                20.0,
                &[0, 11, 22, 33, 44, 55, 66, 77, 88, 99],
            ),
            (EvenlySpaced, rate(2.0), 3, 30.0, &[0, 1, 2]),
            (Seconds, rate(2.0), 31, 10.0, &[0, 5, 10, 15, 20, 25]),
            (Seconds, rate(2.0), 25, 10.0, &[0, 5, 10, 15, 20, 20]),
            (Centers, frames(4), 10, 10.0, &[1, 3, 6, 8]),
            (Trimmed, both, 300, 10.0, &[10, 150, 290]),
        ];
        for (method, options, total, fps, expected) in cases {
            let found = sampling(*method).indices(&video(*total, *fps), options);
            assert_eq!(
                found.unwrap(),
                *expected,
                "{method:?} {options:?} of {total}"
            );
        }
    }

    #[test]
    fn no_choice_leaves_the_video() {
        use SamplingMethod::{Centers, EvenlySpaced, Seconds, Stride, Trimmed, Uniform};
        for method in [Uniform, Stride, EvenlySpaced, Seconds, Centers, Trimmed] {
            for total in [1, 2, 3, 7, 100, 4_000] {
                for source in [0.1, 1.0, 24.0, 1_000.0] {
                    for fps in [None, Some(0.01), Some(2.0), Some(500.0), Some(f64::NAN)] {
                        for num_frames in [None, Some(0), Some(1), Some(9), Some(1 << 40)] {
                            let options = SampleOptions {
                                fps,
                                num_frames,
                                all_frames: false,
                            };
                            let video = video(total, source);
                            let indices = sampling(method).indices(&video, &options).unwrap();
                            assert!(!indices.is_empty());
                            assert!(indices.is_sorted());
                            assert!(indices.iter().all(|&index| index < total));
                            assert!(indices.len() <= total + 1, "{method:?} {options:?}");
                        }
                    }
                }
            }
        }
    }
}

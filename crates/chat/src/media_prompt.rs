//! What a model's processor makes of images and videos in messages, and how they enter a prompt.

use std::sync::Arc;

use loquat_engine::{MediaContent, PromptSpan};
use loquat_media::resample::{Arithmetic, Filter, resize};
use loquat_media::rules::PromptFrame;
use loquat_media::{
    Expansion, FrameSource, Layout, Limits, MediaError, MediaPixels, MediaPlan, Piece, Processor,
    Raster, SampleOptions, probe,
};
use loquat_session::{Grid, Media, Picture, Tiling, View};
use loquat_spec::VisionSpec;
use loquat_text::{TextError, Tokenizer};

use crate::media::{Detail, ImageSource, VideoSource};
use crate::prepared_media::{self, PreparedMedia};
use crate::quote::RenderedPrompt;
use crate::{ChatError, ContentPart, Image, Message, Role, Video};

/// The longest side of an image with [`Detail::Low`].
const LOW_DETAIL_SIDE: u32 = 512;
/// Of preprocessed media that are kept for the next turn.
const PREPARED_BYTES: usize = 256 << 20;

/// Reads the media of messages as a checkpoint's processor files describe.
#[derive(Debug, Clone)]
pub struct MediaReader {
    processor: Processor,
    limits: Limits,
    /// Pixels of a patch's side.
    patch_side: u32,
    takes_video: bool,
    room: Option<MediaRoom>,
    prepared: Arc<PreparedMedia>,
}

/// What fits a session, in positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaRoom {
    /// Of one image or video.
    pub item: usize,
    /// Of all media in a prompt.
    pub prompt: usize,
}

/// How a template or, in its place, the message writes media.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MediaMarkers<'a> {
    pub image: &'a str,
    pub video: &'a str,
}

/// An image or a video of a conversation.
pub(crate) struct MessageMedia<'a> {
    field: String,
    part: &'a ContentPart,
}

/// The media of a conversation, in order.
pub(crate) fn message_media(messages: &[Message]) -> Vec<MessageMedia<'_>> {
    let media = messages.iter().enumerate().flat_map(|(index, message)| {
        let media = message.content.media();
        media.map(move |(at, part)| {
            let field = match part {
                ContentPart::Image(image) => image.field.as_ref(),
                ContentPart::Video(video) => video.field.as_ref(),
                ContentPart::Text(_) => None,
            };
            let place = || format!("messages[{index}].content[{at}]");
            let field = field.cloned().unwrap_or_else(place);
            MessageMedia { field, part }
        })
    });
    media.collect()
}

/// Stands for an image or a video in a [raw prompt](crate::ChatContext::encode_raw), as in
/// llama.cpp.
pub const MEDIA_MARKER: &str = "<__media__>";

/// The media of a prompt without messages, in order.
pub(crate) fn raw_media(parts: &[ContentPart]) -> Vec<MessageMedia<'_>> {
    let media = parts.iter().enumerate().filter_map(|(at, part)| {
        let field = match part {
            ContentPart::Image(image) => &image.field,
            ContentPart::Video(video) => &video.field,
            ContentPart::Text(_) => return None,
        };
        let field = field.clone().unwrap_or_else(|| format!("media[{at}]"));
        Some(MessageMedia { field, part })
    });
    media.collect()
}

impl MessageMedia<'_> {
    pub fn unsupported(&self, why: impl Into<String>) -> ChatError {
        let kind = match self.part {
            ContentPart::Video(_) => "a video",
            ContentPart::Image(_) | ContentPart::Text(_) => "an image",
        };
        ChatError::MediaUnsupported {
            field: self.field.clone(),
            kind,
            why: why.into(),
        }
    }

    fn failed(&self, source: MediaError) -> ChatError {
        ChatError::Media {
            field: self.field.clone(),
            source,
        }
    }

    fn is_video(&self) -> bool {
        matches!(self.part, ContentPart::Video(_))
    }

    /// Refuses it if it takes more positions than there are.
    fn check_room(&self, positions: usize, room: usize) -> Result<(), ChatError> {
        if positions <= room {
            return Ok(());
        }
        Err(ChatError::MediaTooLong {
            field: self.field.clone(),
            positions,
            room,
        })
    }
}

/// Refuses media in messages whose templates have no place for them.
pub(crate) fn check_roles(messages: &[Message]) -> Result<(), ChatError> {
    let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    let with_media = |message: &&Message| message.content.has_media();
    let wrong = messages.iter().filter(is_system).find(with_media);
    match wrong.map(std::slice::from_ref).map(message_media) {
        Some(media) => Err(media[0].unsupported(format!(
            "messages of the role `{}` are text only",
            Role::System
        ))),
        None => Ok(()),
    }
}

/// A prompt as the engine takes it.
pub(crate) type Spans = Vec<PromptSpan>;

impl MediaReader {
    /// `vision` is the model's tower. Each image or video is read within `limits`, and those of one
    /// request within the same limits on pixels together.
    pub fn new(processor: Processor, vision: &VisionSpec, limits: Limits) -> Self {
        Self {
            takes_video: vision.video && processor.video.is_some(),
            patch_side: u32::try_from(vision.patch.side).unwrap_or(u32::MAX).max(1),
            processor,
            limits,
            room: None,
            prepared: Arc::new(PreparedMedia::new(PREPARED_BYTES)),
        }
    }

    /// The same reader, which refuses what does not fit before it is decoded.
    pub fn with_room(self, room: MediaRoom) -> Self {
        Self {
            room: Some(room),
            ..self
        }
    }

    /// Whether the model reads videos as well as images.
    pub fn takes_video(&self) -> bool {
        self.takes_video
    }

    /// Whether prompts without media are changed too.
    pub(crate) fn frames_text(&self) -> bool {
        self.processor.prompt.frame == PromptFrame::BosAfterImages
    }

    pub(crate) fn markers(&self) -> MediaMarkers<'_> {
        let rules = &self.processor.prompt;
        MediaMarkers {
            image: &rules.image_marker,
            video: rules.video.as_ref().map_or("", |video| &video.marker),
        }
    }

    /// The prompt with every marker replaced by the features of its media. `is_unwanted` is asked
    /// between media.
    pub(crate) fn spans(
        &self,
        prompt: &RenderedPrompt,
        media: &[MessageMedia<'_>],
        encoder: &Tokenizer,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Spans, ChatError> {
        // Everything is priced before anything is decoded.
        let plans = self.plans(media)?;
        let expansions: Vec<&Expansion> = plans.iter().map(|plan| &plan.expansion).collect();
        let pieces = self.pieces(prompt, media, &expansions)?;
        let images = media.iter().filter(|media| !media.is_video()).count();
        let mut contents = Vec::with_capacity(media.len());
        for (media, plan) in media.iter().zip(&plans) {
            if is_unwanted() {
                return Err(TextError::Interrupted.into());
            }
            let content = self
                .prepared_content(media, images)
                .map_err(|error| media.failed(error))?;
            debug_assert_eq!(content.positions(), plan.positions());
            contents.push(content);
        }
        let mut runs = Runs::new(&expansions);
        let mut spans = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Features { token: _, count } => {
                    let next = runs.next(count);
                    let (item, start) = next.ok_or_else(|| unordered(media))?;
                    spans.push(PromptSpan::Media {
                        content: Arc::clone(&contents[item]),
                        range: start..start + count,
                    });
                }
                text => spans.push(PromptSpan::Tokens(encode(text, encoder, spans.is_empty())?)),
            }
        }
        Ok(spans)
    }

    /// The same for a text whose media stand at [`MEDIA_MARKER`]s.
    pub(crate) fn raw_spans(
        &self,
        text: &str,
        media: &[MessageMedia<'_>],
        encoder: &Tokenizer,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Spans, ChatError> {
        let rules = &self.processor.prompt;
        let mut written = String::with_capacity(text.len());
        let mut rest = media.iter();
        for (index, part) in text.split(MEDIA_MARKER).enumerate() {
            if index > 0 {
                written.push_str(match rest.next() {
                    Some(media) if media.is_video() => self.markers().video,
                    Some(_) => &rules.untemplated_image,
                    None => MEDIA_MARKER,
                });
            }
            written.push_str(part);
        }
        self.spans(&RenderedPrompt::new(written), media, encoder, is_unwanted)
    }

    /// The prompt's tokens, with the model's own placeholders at positions of media, which are not
    /// decoded.
    pub(crate) fn tokens(
        &self,
        prompt: &RenderedPrompt,
        media: &[MessageMedia<'_>],
        encoder: &Tokenizer,
    ) -> Result<Vec<u32>, ChatError> {
        let plans = self.plans(media)?;
        let expansions: Vec<&Expansion> = plans.iter().map(|plan| &plan.expansion).collect();
        let mut tokens = Vec::new();
        for piece in self.pieces(prompt, media, &expansions)? {
            match piece {
                Piece::Features { token, count } => {
                    let id = encoder.token_id(&token).unwrap_or_default();
                    tokens.extend(std::iter::repeat_n(id, count));
                }
                text => tokens.extend(encode(text, encoder, tokens.is_empty())?),
            }
        }
        Ok(tokens)
    }

    fn pieces(
        &self,
        prompt: &RenderedPrompt,
        media: &[MessageMedia<'_>],
        expansions: &[&Expansion],
    ) -> Result<Vec<Piece>, ChatError> {
        let of_kind = |video: bool| {
            let items = media.iter().zip(expansions);
            let items = items.filter(move |(media, _)| media.is_video() == video);
            items.map(|(_, expansion)| *expansion).collect::<Vec<_>>()
        };
        let (images, videos) = (of_kind(false), of_kind(true));
        let expanded = self
            .processor
            .expand_prompt(prompt.rendered(), &images, &videos);
        expanded.map_err(|source| ChatError::Media {
            field: media
                .first()
                .map_or_else(|| "messages".to_owned(), |media| media.field.clone()),
            source,
        })
    }

    fn plans(&self, media: &[MessageMedia<'_>]) -> Result<Vec<MediaPlan>, ChatError> {
        let images = media.iter().filter(|media| !media.is_video()).count();
        let (mut pixels, mut values, mut positions) = (0, 0, 0);
        let mut plans = Vec::with_capacity(media.len());
        for media in media {
            let planned = match media.part {
                ContentPart::Image(image) => self.plan_image(image, images),
                ContentPart::Video(video) if self.takes_video => self.plan_video(video),
                ContentPart::Video(_) => Err(MediaError::VideoUnsupported),
                ContentPart::Text(_) => continue,
            };
            let (plan, decoded) = planned.map_err(|error| media.failed(error))?;
            pixels += decoded;
            values += plan.values as u64;
            let fits = self.limits.check_together(pixels, values);
            fits.map_err(|error| media.failed(error))?;
            positions += plan.positions();
            if let Some(room) = self.room {
                media.check_room(plan.positions(), room.item)?;
                media.check_room(positions, room.prompt)?;
            }
            plans.push(plan);
        }
        Ok(plans)
    }

    /// What an image costs, and its pixels.
    fn plan_image(&self, image: &Image, images: usize) -> Result<(MediaPlan, u64), MediaError> {
        let (width, height) = match &*image.source {
            ImageSource::File(bytes) => {
                let info = probe(bytes, &self.limits)?;
                (info.width, info.height)
            }
            ImageSource::Pixels(raster) => (raster.width(), raster.height()),
        };
        let plan = |(width, height)| {
            self.processor
                .plan_image(width, height, images, &self.limits)
        };
        let plan = plan(self.used_size(image.detail, (width, height), images)?)?;
        Ok((plan, u64::from(width) * u64::from(height)))
    }

    /// The size at which the processor gets an image.
    fn used_size(
        &self,
        detail: Detail,
        (width, height): (u32, u32),
        images: usize,
    ) -> Result<(u32, u32), MediaError> {
        let longest = width.max(height);
        if detail == Detail::Full || longest <= LOW_DETAIL_SIDE {
            return Ok((width, height));
        }
        let shrunk = |side: u32| {
            let side = u64::from(side) * u64::from(LOW_DETAIL_SIDE) / u64::from(longest);
            u32::try_from(side).unwrap_or(u32::MAX).max(1)
        };
        let small = (shrunk(width), shrunk(height));
        let positions = |(width, height)| {
            let plan = self
                .processor
                .plan_image(width, height, images, &self.limits);
            plan.map(|plan| plan.positions())
        };
        let saves = match (positions(small), positions((width, height))) {
            (Ok(small), Ok(full)) => small < full,
            (Ok(_), Err(_)) => true,
            (Err(_), _) => false,
        };
        Ok(if saves { small } else { (width, height) })
    }

    fn plan_video(&self, video: &Video) -> Result<(MediaPlan, u64), MediaError> {
        let (metadata, indices) = match &*video.source {
            VideoSource::File(bytes) => {
                let source = FrameSource::open(bytes, &self.limits)?;
                let indices = self
                    .processor
                    .sample(source.metadata(), &SampleOptions::default())?;
                (source.metadata().clone(), indices)
            }
            VideoSource::Frames(video) => (video.metadata.clone(), video.indices.clone()),
        };
        let plan = self
            .processor
            .plan_video(&metadata, &indices, &self.limits)?;
        // Frames are decoded one at a time within their own limits.
        Ok((plan, u64::from(metadata.width) * u64::from(metadata.height)))
    }

    /// The media's content, from an earlier request if it is still there.
    fn prepared_content(
        &self,
        media: &MessageMedia<'_>,
        images: usize,
    ) -> Result<Arc<MediaContent>, MediaError> {
        let key = prepared_media::key(media.part, images);
        if let Some(content) = key.and_then(|key| self.prepared.get(&key)) {
            return Ok(content);
        }
        let content = Arc::new(self.content(media, images)?);
        if let Some(key) = key {
            self.prepared.insert(key, &content);
        }
        Ok(content)
    }

    fn content(&self, media: &MessageMedia<'_>, images: usize) -> Result<MediaContent, MediaError> {
        let pixels = match media.part {
            ContentPart::Image(image) => self.read_image(image, images)?,
            ContentPart::Video(video) => match &*video.source {
                VideoSource::File(bytes) => {
                    let source = FrameSource::open(bytes, &self.limits)?;
                    let options = SampleOptions::default();
                    self.processor.video_file(&source, &options, &self.limits)?
                }
                VideoSource::Frames(frames) => self.processor.video(frames, &self.limits)?,
            },
            ContentPart::Text(_) => return Err(MediaError::EmptyFile),
        };
        let positions = pixels.positions();
        Ok(MediaContent::new(
            self.media(pixels, media.is_video()),
            positions,
        ))
    }

    fn read_image(&self, image: &Image, images: usize) -> Result<MediaPixels, MediaError> {
        let decoded;
        let raster = match &*image.source {
            ImageSource::File(bytes) => {
                decoded = Raster::decode(bytes, &self.limits)?;
                &decoded
            }
            ImageSource::Pixels(raster) => raster,
        };
        let size = (raster.width(), raster.height());
        let used = self.used_size(image.detail, size, images)?;
        if used == size {
            return self.processor.image(raster, images, &self.limits);
        }
        let (width, height) = used;
        let small = resize(
            raster,
            width,
            height,
            Filter::Bicubic,
            Arithmetic::Torchvision,
        );
        self.processor.image(&small, images, &self.limits)
    }

    /// The form in which a session encodes preprocessed values.
    fn media(&self, pixels: MediaPixels, is_video: bool) -> Media {
        let values = pixels.repeated_values();
        let repeats = match pixels.layout {
            Layout::MergedPatches { repeat, .. } => repeat as usize,
            Layout::Planar | Layout::Patches { .. } => 1,
        };
        let runs = feature_runs(&pixels.expansion).count();
        let mut views = Vec::with_capacity(pixels.views.len());
        for view in &pixels.views {
            let [frames, mut rows, mut cols] = view.grid.map(|side| side as usize);
            if pixels.layout == Layout::Planar {
                let side = self.patch_side as usize;
                (rows, cols) = (rows / side, cols / side);
            }
            let start = view.offset * repeats;
            let own = &values[start..start + view.values * repeats];
            // Text between frames makes each of them a view.
            let apart = is_video && frames > 1 && pixels.views.len() == 1 && runs == frames;
            let count = if apart { frames } else { 1 };
            views.extend(own.chunks((own.len() / count).max(1)).map(|values| View {
                grid: Grid {
                    frames: frames / count,
                    rows,
                    cols,
                },
                values: values.to_vec(),
            }));
        }
        let tiling = (pixels.tile_rows > 0 && pixels.tile_columns > 0).then_some(Tiling {
            rows: pixels.tile_rows as usize,
            cols: pixels.tile_columns as usize,
            height: pixels.height as usize,
            width: pixels.width as usize,
        });
        let picture = Picture {
            views,
            tiling,
            seconds_per_frame: pixels.seconds_per_grid.map(|seconds| seconds as f32),
        };
        if is_video {
            Media::Video(picture)
        } else {
            Media::Image(picture)
        }
    }
}

/// Assigns runs of features to the media whose expansions contain them.
struct Runs<'a> {
    expansions: &'a [&'a Expansion],
    item: usize,
    /// Of the item: runs, and positions in them.
    done: (usize, usize),
}

impl<'a> Runs<'a> {
    fn new(expansions: &'a [&'a Expansion]) -> Self {
        Self {
            expansions,
            item: 0,
            done: (0, 0),
        }
    }

    /// The item that the next run belongs to, and the run's first position in it. `None` if it is
    /// not that item's.
    fn next(&mut self, count: usize) -> Option<(usize, usize)> {
        loop {
            let expansion = self.expansions.get(self.item)?;
            let (runs, start) = self.done;
            match feature_runs(expansion).nth(runs) {
                Some(expected) if expected == count => {
                    self.done = (runs + 1, start + count);
                    return Some((self.item, start));
                }
                Some(_) => return None,
                None => {
                    self.item += 1;
                    self.done = (0, 0);
                }
            }
        }
    }
}

fn feature_runs(expansion: &Expansion) -> impl Iterator<Item = usize> + '_ {
    expansion.pieces.iter().filter_map(|piece| match piece {
        Piece::Features { count, .. } => Some(*count),
        Piece::Text(_) | Piece::Token(_) => None,
    })
}

fn unordered(media: &[MessageMedia<'_>]) -> ChatError {
    ChatError::Unsupported {
        field: "messages",
        why: format!(
            "its chat template writes {} media in another order than the messages",
            media.len()
        ),
    }
}

/// The tokens of a piece without features.
fn encode(piece: Piece, encoder: &Tokenizer, is_start: bool) -> Result<Vec<u32>, ChatError> {
    let text = match piece {
        Piece::Text(text) => text,
        Piece::Token(token) => match encoder.token_id(&token) {
            Some(id) => return Ok(vec![id]),
            None => token,
        },
        Piece::Features { .. } => String::new(),
    };
    Ok(RenderedPrompt::new(text).encode_part(encoder, is_start)?)
}

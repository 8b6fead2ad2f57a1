//! Preprocessed media of recent requests: a conversation sends its images again with every turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loquat_engine::MediaContent;
use loquat_session::Media;
use sha2::{Digest, Sha256};

use crate::media::{Detail, ImageSource, VideoSource};
use crate::{ContentPart, Image, Video};

/// Finding one among these takes less time than hashing a small image.
const MAX_ENTRIES: usize = 1024;

/// A file, and what besides the processor's rules decides about its values.
pub(crate) type PreparedKey = [u8; 32];

/// The most recently used contents within a number of bytes.
#[derive(Debug)]
pub(crate) struct PreparedMedia {
    max_bytes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// The most recently used one last.
    contents: Vec<(PreparedKey, Arc<MediaContent>)>,
    bytes: usize,
}

impl PreparedMedia {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            entries: Mutex::default(),
        }
    }

    pub fn get(&self, key: &PreparedKey) -> Option<Arc<MediaContent>> {
        let mut entries = self.lock();
        let at = entries
            .contents
            .iter()
            .position(|(known, _)| known == key)?;
        let entry = entries.contents.remove(at);
        let content = Arc::clone(&entry.1);
        entries.contents.push(entry);
        Some(content)
    }

    /// Keeps a content, if it fits at all. The least recently used ones make room.
    pub fn insert(&self, key: PreparedKey, content: &Arc<MediaContent>) {
        let bytes = byte_len(content);
        if bytes > self.max_bytes {
            return;
        }
        let mut entries = self.lock();
        if entries.contents.iter().any(|(known, _)| *known == key) {
            return;
        }
        entries.bytes += bytes;
        entries.contents.push((key, Arc::clone(content)));
        while entries.bytes > self.max_bytes || entries.contents.len() > MAX_ENTRIES {
            let (_, oldest) = entries.contents.remove(0);
            entries.bytes -= byte_len(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn byte_len(content: &MediaContent) -> usize {
    let values = match content.media() {
        Media::Image(picture) | Media::Video(picture) => {
            picture.views.iter().map(|view| view.values.len()).sum()
        }
        Media::Embeddings(values) => values.len(),
    };
    values * size_of::<f32>()
}

/// Of a part that is media; `images` is how many its conversation has. `None` for decoded frames,
/// which would have to be hashed whole.
pub(crate) fn key(part: &ContentPart, images: usize) -> Option<PreparedKey> {
    let mut hasher = Sha256::new();
    match part {
        ContentPart::Text(_) => return None,
        ContentPart::Image(Image { source, detail, .. }) => {
            let detail = match detail {
                Detail::Full => 0,
                Detail::Low => 1,
            };
            hasher.update([0, detail]);
            // Some processors cut a single image into tiles.
            hasher.update((images as u64).to_le_bytes());
            match &**source {
                ImageSource::File(bytes) => {
                    hasher.update([0]);
                    hasher.update(bytes);
                }
                ImageSource::Pixels(raster) => {
                    hasher.update([1]);
                    hasher.update(raster.width().to_le_bytes());
                    hasher.update(raster.rgb());
                }
            }
        }
        ContentPart::Video(Video { source, .. }) => match &**source {
            VideoSource::File(bytes) => {
                hasher.update([1]);
                hasher.update(bytes);
            }
            VideoSource::Frames(_) => return None,
        },
    }
    Some(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(values: usize) -> Arc<MediaContent> {
        let media = Media::Embeddings(vec![0.0; values]);
        Arc::new(MediaContent::new(media, 1))
    }

    #[test]
    fn least_recently_used_contents_make_room() {
        let prepared = PreparedMedia::new(100);
        let keys = [1, 2, 3, 4].map(|byte| [byte; 32]);
        prepared.insert(keys[0], &content(10));
        prepared.insert(keys[1], &content(10));
        assert!(prepared.get(&keys[0]).is_some());
        prepared.insert(keys[2], &content(10));
        prepared.insert(keys[3], &content(26));
        let kept = keys.map(|key| prepared.get(&key).is_some());
        assert_eq!(kept, [true, false, true, false]);
        assert_eq!(prepared.lock().bytes, 80);
    }

    #[test]
    fn key_covers_all_that_changes_values() {
        let image = |bytes: &[u8]| Image::from_bytes(bytes);
        let base = key(&image(b"a").into(), 1);
        assert_eq!(base, key(&image(b"a").with_field("other").into(), 1));
        let pixels = |width, height| Image::from_rgb8(width, height, vec![7; 6]).expect("pixels");
        let parts: [(ContentPart, usize); 6] = [
            (image(b"b").into(), 1),
            (image(b"a").into(), 2),
            (image(b"a").with_detail(Detail::Low).into(), 1),
            (Video::from_bytes(b"a").into(), 1),
            (pixels(2, 1).into(), 1),
            (pixels(1, 2).into(), 1),
        ];
        let mut keys: Vec<_> = parts
            .iter()
            .map(|(part, images)| key(part, *images))
            .collect();
        keys.push(base);
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert!(keys.iter().all(Option::is_some));
        assert_eq!(key(&"text".into(), 1), None);
    }
}

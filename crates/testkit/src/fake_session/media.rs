//! The fake's tower: a position's feature is a hash of its view's values and its place in it.

use loquat_session::{Media, MediaLayout, SessionError, ViewLayout};
use loquat_spec::MediaAttention;
use loquat_synthetic::SplitMix64;

use super::FakeOptions;

/// Features, like tokens, are below this; tokens of small vocabularies are below features.
const FEATURES: u64 = 1 << 31;

/// The layout of `media`, and a history entry for each of its positions.
pub fn encode(
    media: &Media,
    options: &FakeOptions,
) -> Result<(MediaLayout, Vec<u32>), SessionError> {
    if options.media.capacity == 0 {
        return Err(SessionError::Unsupported("media"));
    }
    let invalid = |field, why: &str| SessionError::InvalidMedia {
        field,
        why: why.to_owned(),
    };
    let views: Vec<(usize, &[f32])> = match media {
        Media::Embeddings(values) => {
            let hidden = options.hidden_size.unwrap_or(1);
            if values.is_empty() || !values.len().is_multiple_of(hidden) {
                return Err(invalid("embeddings", "they are not whole vectors"));
            }
            vec![(values.len() / hidden, values)]
        }
        Media::Image(picture) | Media::Video(picture) => {
            let views = picture.views.iter().map(|view| {
                let patches = view.grid.len().filter(|patches| *patches > 0);
                let patches = patches.filter(|count| view.values.len().is_multiple_of(*count));
                let patches = patches.ok_or_else(|| invalid("values", "they do not fit the grid"));
                Ok((patches?, view.values.as_slice()))
            });
            views.collect::<Result<_, SessionError>>()?
        }
    };
    if views.is_empty() {
        return Err(invalid("views", "there is none"));
    }
    let mut features = Vec::new();
    for (positions, values) in &views {
        let bits = values.iter().map(|value| u64::from(value.to_bits()));
        let seed = bits.fold(1, |hash, bits| SplitMix64::mix(hash ^ bits.rotate_left(17)));
        let places = 0..*positions as u64;
        let hashed = places.map(|place| SplitMix64::mix(seed.wrapping_add(place)) % FEATURES);
        features.extend(hashed.map(|hash| hash as u32 | FEATURES as u32));
    }
    let whole = options.media.attention != MediaAttention::Causal;
    let layout = MediaLayout {
        views: views
            .iter()
            .map(|(positions, _)| ViewLayout {
                positions: *positions,
                grid: None,
            })
            .collect(),
        divisible: !whole || matches!(media, Media::Embeddings(_)),
    };
    Ok((layout, features))
}

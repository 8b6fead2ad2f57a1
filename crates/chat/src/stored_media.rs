//! The stored form of media: files and pixels as base64.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use loquat_media::{Limits, Raster};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::media::{Detail, Image, ImageSource, Video, VideoSource};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredImage {
    image: String,
    /// Width and height, if `image` is pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pixels: Option<(u32, u32)>,
    #[serde(default)]
    detail: Detail,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredVideo {
    video: String,
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (bytes, pixels) = match &*self.source {
            ImageSource::File(bytes) => (bytes.as_slice(), None),
            ImageSource::Pixels(raster) => (raster.rgb(), Some((raster.width(), raster.height()))),
        };
        let stored = StoredImage {
            image: STANDARD.encode(bytes),
            pixels,
            detail: self.detail,
        };
        stored.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredImage {
            image,
            pixels,
            detail,
        } = StoredImage::deserialize(deserializer)?;
        let bytes = STANDARD.decode(image).map_err(de::Error::custom)?;
        let source = match pixels {
            None => ImageSource::File(bytes),
            Some((width, height)) => {
                let raster = Raster::from_rgb8(width, height, bytes, &Limits::default());
                ImageSource::Pixels(raster.map_err(de::Error::custom)?)
            }
        };
        Ok(Self {
            source: Arc::new(source),
            detail,
            field: None,
        })
    }
}

impl Serialize for Video {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let VideoSource::File(bytes) = &*self.source else {
            let why = "decoded frames of a video cannot be stored; use the video's file";
            return Err(ser::Error::custom(why));
        };
        let video = STANDARD.encode(bytes);
        StoredVideo { video }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Video {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredVideo { video } = StoredVideo::deserialize(deserializer)?;
        let bytes = STANDARD.decode(video).map_err(de::Error::custom)?;
        Ok(Self::from_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use crate::{ContentPart, Detail, Image, Message, Video};

    #[test]
    fn messages_with_media_round_trip() {
        let parts: Vec<ContentPart> = vec![
            Image::from_bytes(vec![1, 2, 3]).into(),
            Image::from_rgb8(1, 1, vec![4, 5, 6])
                .expect("one pixel")
                .with_detail(Detail::Low)
                .into(),
            Video::from_bytes(vec![7]).into(),
            "What is this?".into(),
        ];
        let message = Message::user(parts);
        let stored = serde_json::to_string(&message).expect("JSON");
        let read: Message = serde_json::from_str(&stored).expect("a message");
        assert_eq!(read, message);
        let text = r#"{"role":"user","content":["a","b"]}"#;
        let read: Message = serde_json::from_str(text).expect("a message");
        assert_eq!(read.content.joined(), "a\nb");
    }
}

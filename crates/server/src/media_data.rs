//! Images and videos in requests: base64 and `data:` URIs.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use loquat_chat::{Image, Video};
use loquat_media::{ImageFormat, Limits};

use crate::error::ApiError;
use crate::field::FieldPath;

/// Padding may be missing, as in the URIs of some clients.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a URL is to contain, for messages.
#[derive(Clone, Copy)]
struct Expected {
    noun: &'static str,
    example: &'static str,
}

const IMAGE: Expected = Expected {
    noun: "image",
    example: "data:image/png;base64,…",
};
const VIDEO: Expected = Expected {
    noun: "video",
    example: "data:video/mp4;base64,…",
};

/// The image of a URL, which must be a `data:` URI.
pub fn image_from_url(field: FieldPath, url: &str) -> Result<Image, ApiError> {
    let (media_type, data) = data_of_url(&field, url, IMAGE)?;
    image_from_base64(field, data, media_type)
}

/// The video of a URL, which must be a `data:` URI. Its bytes decide what it is.
pub fn video_from_url(field: FieldPath, url: &str) -> Result<Video, ApiError> {
    let (_, data) = data_of_url(&field, url, VIDEO)?;
    let name = field.as_str().to_owned();
    Ok(Video::from_bytes(decode(field, data)?).with_field(name))
}

/// An image file as base64, and the media type that the client gives it.
pub fn image_from_base64(
    field: FieldPath,
    data: &str,
    media_type: Option<&str>,
) -> Result<Image, ApiError> {
    let bytes = decode(field.clone(), data)?;
    if let Some(media_type) = media_type {
        let format = ImageFormat::from_media_type(media_type);
        let checked = match &format {
            Some(format) => format.expect(&bytes).map_err(|error| error.to_string()),
            None => Err(format!(
                "`{media_type}` is not supported; use PNG, JPEG, WebP, GIF or BMP"
            )),
        };
        if let Err(problem) = checked {
            return Err(ApiError::invalid(
                field,
                format!("cannot be read: {problem}"),
            ));
        }
    }
    let name = field.as_str().to_owned();
    Ok(Image::from_bytes(bytes).with_field(name))
}

/// The media type, if there is one, and the base64 of a `data:` URI.
fn data_of_url<'a>(
    field: &FieldPath,
    url: &'a str,
    Expected { noun, example }: Expected,
) -> Result<(Option<&'a str>, &'a str), ApiError> {
    let Some(rest) = strip_scheme(url, "data:") else {
        let mut schemes = ["http:", "https:", "ftp:", "file:"].iter();
        let problem = if schemes.any(|scheme| strip_scheme(url, scheme).is_some()) {
            format!(
                "is a remote address, and this server fetches nothing; send the {noun} itself as \
                 `{example}`"
            )
        } else {
            format!("must be a `data:` URI: `{example}`")
        };
        return Err(ApiError::invalid(field.clone(), problem));
    };
    let parsed = rest.split_once(',');
    let parsed = parsed.and_then(|(head, data)| Some((head.strip_suffix(";base64")?, data)));
    let Some((head, data)) = parsed else {
        let problem = format!("is not a `data:` URI with base64: `{example}`");
        return Err(ApiError::invalid(field.clone(), problem));
    };
    let media_type = head.split(';').next().filter(|kind| !kind.is_empty());
    Ok((media_type, data))
}

/// The bytes of base64, at most as many as a media file may have.
pub fn decode(field: FieldPath, data: &str) -> Result<Vec<u8>, ApiError> {
    let limits = Limits::default();
    let most = data.len() / 4 * 3;
    if let Err(error) = limits.check_file_bytes(most as u64) {
        return Err(ApiError::invalid(field, format!("is too large: {error}")));
    }
    BASE64
        .decode(data.trim_end())
        .map_err(|error| ApiError::invalid(field, format!("is not base64: {error}")))
}

fn strip_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let head = url.get(..scheme.len())?;
    head.eq_ignore_ascii_case(scheme)
        .then(|| &url[scheme.len()..])
}

/// Whether a URL is one that could be fetched.
pub fn is_http(url: &str) -> bool {
    let mut schemes = ["http:", "https:"].iter();
    schemes.any(|scheme| strip_scheme(url, scheme).is_some())
}

/// A `data:` URI of bytes that say themselves what they are.
pub fn untyped_url(bytes: &[u8]) -> String {
    format!("data:;base64,{}", BASE64.encode(bytes))
}

/// A `data:` URI of an image file.
pub fn image_to_url(bytes: &[u8]) -> Option<String> {
    let media_type = media_type(ImageFormat::detect(bytes).ok()?);
    Some(format!("data:{media_type};base64,{}", BASE64.encode(bytes)))
}

/// A `data:` URI of a video file.
pub fn video_to_url(bytes: &[u8]) -> String {
    let media_type = ImageFormat::detect(bytes).map_or("video/mp4", media_type);
    format!("data:{media_type};base64,{}", BASE64.encode(bytes))
}

fn media_type(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "image/png",
        ImageFormat::Jpeg => "image/jpeg",
        ImageFormat::WebP => "image/webp",
        ImageFormat::Gif => "image/gif",
        ImageFormat::Bmp => "image/bmp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;

    #[test]
    fn only_media_in_the_request_are_read() {
        let png = BASE64.encode(b"\x89PNG\r\n\x1a\n");
        let unpadded = png.trim_end_matches('=');
        for url in [
            format!("data:image/png;base64,{png}"),
            format!("DATA:image/png;charset=utf-8;base64,{unpadded}"),
            format!("data:;base64,{png}"),
        ] {
            assert!(
                image_from_url(Field::ImageUrl.into(), &url).is_ok(),
                "{url}"
            );
            assert!(
                video_from_url(Field::VideoUrl.into(), &url).is_ok(),
                "{url}"
            );
        }
        for (url, expected) in [
            ("https://example.com/a.png".to_owned(), "fetches nothing"),
            ("file:///etc/passwd".to_owned(), "fetches nothing"),
            ("cat.png".to_owned(), "must be a `data:` URI"),
            ("data:image/png,abc".to_owned(), "with base64"),
            ("data:image/png;base64,a!".to_owned(), "is not base64"),
        ] {
            let error = image_from_url(Field::ImageUrl.into(), &url).expect_err(&url);
            assert_eq!(error.param, Some(Field::ImageUrl.into()));
            assert!(error.message.contains(expected), "{}", error.message);
            let error = video_from_url(Field::VideoUrl.into(), &url).expect_err(&url);
            assert_eq!(error.param, Some(Field::VideoUrl.into()));
            assert!(error.message.contains(expected), "{}", error.message);
        }
        for (url, expected) in [
            (format!("data:image/jpeg;base64,{png}"), "not JPEG but PNG"),
            (format!("data:image/svg+xml;base64,{png}"), "not supported"),
        ] {
            let error = image_from_url(Field::ImageUrl.into(), &url).expect_err(&url);
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }
}

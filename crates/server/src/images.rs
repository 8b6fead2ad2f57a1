//! Images in requests: base64 and `data:` URIs.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use loquat_chat::Image;
use loquat_media::{ImageFormat, Limits};

use crate::error::ApiError;
use crate::field::FieldPath;

/// Padding may be missing, as in the URIs of some clients.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const REMOTE_OFF: &str = "is a remote address, and this server fetches nothing; send the image \
                          itself as `data:image/png;base64,…`";

/// The image of a URL, which must be a `data:` URI.
pub fn from_url(field: FieldPath, url: &str) -> Result<Image, ApiError> {
    let Some(rest) = strip_scheme(url, "data:") else {
        let is_remote = ["http:", "https:", "ftp:", "file:"]
            .iter()
            .any(|scheme| strip_scheme(url, scheme).is_some());
        let problem = if is_remote {
            REMOTE_OFF
        } else {
            "must be a `data:` URI: `data:image/png;base64,…`"
        };
        return Err(ApiError::invalid(field, problem));
    };
    let parsed = rest.split_once(',');
    let parsed = parsed.and_then(|(head, data)| Some((head.strip_suffix(";base64")?, data)));
    let Some((head, data)) = parsed else {
        let problem = "is not a `data:` URI with base64: `data:image/png;base64,…`";
        return Err(ApiError::invalid(field, problem));
    };
    let media_type = head.split(';').next().unwrap_or_default();
    from_base64(
        field,
        data,
        Some(media_type).filter(|kind| !kind.is_empty()),
    )
}

/// An image file as base64, and the media type that the client gives it.
pub fn from_base64(
    field: FieldPath,
    data: &str,
    media_type: Option<&str>,
) -> Result<Image, ApiError> {
    let limits = Limits::default();
    let most = data.len() / 4 * 3;
    if let Err(error) = limits.check_file_bytes(most as u64) {
        return Err(ApiError::invalid(field, format!("is too large: {error}")));
    }
    let bytes = match BASE64.decode(data.trim_end()) {
        Ok(bytes) => bytes,
        Err(error) => {
            return Err(ApiError::invalid(field, format!("is not base64: {error}")));
        }
    };
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

fn strip_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let head = url.get(..scheme.len())?;
    head.eq_ignore_ascii_case(scheme)
        .then(|| &url[scheme.len()..])
}

/// A `data:` URI of an image file.
pub fn to_url(bytes: &[u8]) -> Option<String> {
    let media_type = match ImageFormat::detect(bytes).ok()? {
        ImageFormat::Png => "image/png",
        ImageFormat::Jpeg => "image/jpeg",
        ImageFormat::WebP => "image/webp",
        ImageFormat::Gif => "image/gif",
        ImageFormat::Bmp => "image/bmp",
    };
    Some(format!("data:{media_type};base64,{}", BASE64.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Field;

    #[test]
    fn only_images_in_the_request_are_read() {
        let png = BASE64.encode(b"\x89PNG\r\n\x1a\n");
        let unpadded = png.trim_end_matches('=');
        for url in [
            format!("data:image/png;base64,{png}"),
            format!("DATA:image/png;charset=utf-8;base64,{unpadded}"),
            format!("data:;base64,{png}"),
        ] {
            assert!(from_url(Field::ImageUrl.into(), &url).is_ok(), "{url}");
        }
        for (url, expected) in [
            ("https://example.com/a.png".to_owned(), "fetches nothing"),
            ("file:///etc/passwd".to_owned(), "fetches nothing"),
            ("cat.png".to_owned(), "must be a `data:` URI"),
            ("data:image/png,abc".to_owned(), "with base64"),
            ("data:image/png;base64,a!".to_owned(), "is not base64"),
            (format!("data:image/jpeg;base64,{png}"), "not JPEG but PNG"),
            (format!("data:image/svg+xml;base64,{png}"), "not supported"),
        ] {
            let error = from_url(Field::ImageUrl.into(), &url).expect_err(&url);
            assert_eq!(error.param, Some(Field::ImageUrl.into()));
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }
}
